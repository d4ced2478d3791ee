#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <accelerate/export.h>
#include <accelerate/world.h>

#include "comm/exchange.h"
#include "gate/gate.h"
#include "parallel/block_pool.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

class UnitReduction;

/// Among whom parameters are split and gradients are averaged.
struct ShardGroups {
  /// The ranks that share one copy. Parameters travel in one of the groups,
  /// gradients in the other.
  Group gathering;
  Group reducing;
  /// Some neighbours of `gathering`, who keep a copy among themselves from a
  /// forward to its backward; one rank: nobody does.
  Group neighbours = {};
};

/// A parameter of which each rank keeps some rows. Rank r of R keeps those
/// from floor(n r / R) to floor(n (r + 1) / R) of n; there may be none.
struct ShardedParameter {
  std::string name;
  at::Tensor whole;  ///< the module's own
  at::Tensor local;  ///< this rank's rows, on which the optimizer steps
  std::vector<std::int64_t> row_begins;  ///< one a rank, and the end
  std::unique_ptr<GatedTensor> gate;     ///< null: its memory stays
  /// Its gradients travel in it; unset: as they are.
  std::optional<at::ScalarType> reduce_dtype;
  std::int64_t version_when_opened = 0;

  /// The same among neighbours; and this rank's rows, in between.
  std::vector<std::int64_t> neighbour_begins = {};
  at::Tensor kept_rows = {};

  /// The rows that `rank` keeps, of a tensor of the whole shape.
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& tensor, int rank) const;
  /// It shares messages with others.
  [[nodiscard]] bool is_small() const;
  [[nodiscard]] at::ScalarType reduced_in() const {
    return reduce_dtype.value_or(whole.scalar_type());
  }
};

/// Of a tensor that is cut at `begins`, part number `part`.
at::Tensor rows_between(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& begins,
    int part);

/// Where `num_rows` rows are cut.
ACCELERATE_API std::vector<std::int64_t> row_begins(
    std::int64_t num_rows,
    int num_ranks);

/// Ranks of a group other than this one, each rank beginning with another.
std::vector<int> peers_of(const Group& group);

enum class MessageKind { gather, reduce };

/// Of message number `message` of a unit whose tags begin at `first`. Two of
/// each kind in turn: a rank may be one round ahead of another.
int message_tag(
    int first,
    std::size_t message,
    MessageKind kind,
    std::uint64_t round);

/// Memory that units share, kept between uses.
struct ShardPools {
  /// Of whole parameters, where the model is.
  std::shared_ptr<BlockPool> whole = std::make_shared<BlockPool>();
  /// Of what travels, on the host; the same if the model is there too.
  std::shared_ptr<BlockPool> host = whole;
};

/// Parameters that are gathered together. Large ones travel straight into
/// place; small ones share a message. Ranks meet in host memory: of another
/// device, parts are copied there and whole parameters from there, queued on its
/// current stream.
class ShardUnit {
 public:
  /// `first_tag`: of `num_tags(parameters.size())`.
  ShardUnit(
      std::string name,
      ShardGroups groups,
      std::vector<ShardedParameter> parameters,
      ShardPools pools,
      int first_tag);
  ShardUnit(const ShardUnit&) = delete;
  ShardUnit& operator=(const ShardUnit&) = delete;
  ~ShardUnit();

  static int num_tags(std::size_t num_parameters) {
    return 4 * (static_cast<int>(num_parameters) + 1);
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<ShardedParameter>& parameters() const {
    return parameters_;
  }
  /// Bytes of the whole parameters.
  [[nodiscard]] std::int64_t whole_bytes() const;

  /// All of these are called by all ranks of a group alike.
  void start_gather();
  void finish_gather();
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  /// Lets go of the memory of gated parameters; neighbours may keep a copy
  /// among themselves, for the next gather.
  void release(bool neighbours_keep_it = false);
  /// The same of one parameter, if it is large; the next gather brings it back.
  void release_parameter(std::size_t i);
  /// What the user writes into the whole parameters from here to
  /// keep_changes() becomes the parts.
  void watch_for_changes();
  void keep_changes();

  [[nodiscard]] std::size_t num_trainable() const { return trainable_.size(); }
  /// Numbers of parameters that get gradients.
  [[nodiscard]] const std::vector<std::size_t>& trainable() const {
    return trainable_;
  }
  [[nodiscard]] bool has_gradient() const;
  [[nodiscard]] UnitReduction& reduction() { return *reduction_; }

  /// After a failure: what is under way is left alone, nothing stays whole.
  void abandon();

 private:
  struct Gather;

  [[nodiscard]] at::Tensor host_memory(const at::Tensor& memory) const;
  void queue_copies(Gather& gather);
  void finish_copies();

  std::string name_;
  ShardGroups groups_;
  std::vector<ShardedParameter> parameters_;
  std::vector<std::size_t> trainable_;
  ShardPools pools_;
  int first_tag_;
  bool is_whole_ = true;
  bool neighbours_have_it_ = false;
  std::uint64_t num_gathers_ = 0;
  std::uint64_t num_neighbour_gathers_ = 0;
  std::unique_ptr<Gather> gather_;
  /// Host memory that a device may still be copying from, until the event.
  std::vector<at::Tensor> being_copied_;
  std::optional<c10::Event> copied_;
  std::unique_ptr<UnitReduction> reduction_;
};

}  // namespace accelerate::detail
