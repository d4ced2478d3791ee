#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "gate/disk/disk_tensors.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/sharded_parameter.h"
#include "parallel/shard/unshard/block_pool.h"

namespace accelerate::detail {

/// This rank's place among the ranks over which a model is sharded.
struct ShardPlace {
  int rank = 0;
  /// This rank's place in its reshard group, and that group's size; 1 if there
  /// is none.
  int reshard_group_rank = 0;
  int reshard_group_size = 1;
};

/// Parameters that are gathered together, and whether they are full.
class ShardUnit {
 public:
  /// Adds the unit to `traffic`, which must outlive it. `pool`: memory of full
  /// parameters.
  ShardUnit(
      UnitShards shards,
      ShardPlace place,
      ShardTraffic& traffic,
      std::shared_ptr<BlockPool> pool);
  ShardUnit(const ShardUnit&) = delete;
  ShardUnit& operator=(const ShardUnit&) = delete;

  [[nodiscard]] const UnitShards& shards() const { return shards_; }
  [[nodiscard]] const std::string& name() const { return shards_.name; }
  [[nodiscard]] const std::vector<ShardedParameter>& parameters() const {
    return shards_.parameters;
  }
  [[nodiscard]] ShardTraffic& traffic() const { return traffic_; }
  /// Bytes of the full parameters.
  [[nodiscard]] std::int64_t full_bytes() const;

  /// Begins to bring what a gather reads into memory, if it lies in a file.
  void begin_fetch() const;
  /// All ranks of a group gather and reshard in the same order.
  void start_gather();
  void finish_gather();
  [[nodiscard]] bool is_unsharded() const { return state_ == State::full; }
  /// Frees the memory of gated parameters. `to_reshard_group`: the ranks of the
  /// reshard group keep a replica among themselves for the next gather.
  void reshard(bool to_reshard_group = false);
  /// Frees the memory of one parameter, if it travels alone; the next gather
  /// fills it again.
  void reshard_parameter(std::size_t i);
  /// Begins to gather the full parameters for full_parameters(): those with
  /// more precise shards show the shards' values (PreciseView). finish_gather()
  /// ends it.
  void start_open();
  /// Writes changes made to the full parameters since finish_gather(), or since
  /// forget_changes(), to the shards. Gated parameters must be resharded next.
  void close();
  void forget_changes();
  /// Called around a forward inside full_parameters().
  void begin_forward();
  void end_forward();
  /// Called when the model is prepared: parameters that keep their memory have
  /// it from here on.
  void note_memory();

  [[nodiscard]] std::size_t num_trainable() const {
    return shards_.trainable.size();
  }
  /// Places of parameters that get gradients.
  [[nodiscard]] const std::vector<std::size_t>& trainable() const {
    return shards_.trainable;
  }
  [[nodiscard]] bool has_gradient() const;

  /// Called after a failure: drops communication in flight and reshards.
  void abandon();

 private:
  /// In state `sharded`, some parameters may still be full.
  enum class State { sharded, gathering, full };

  [[nodiscard]] at::Tensor memory_for(ShardedParameter& parameter);
  void free_memory(ShardedParameter& parameter);
  void keep_changes(const ShardedParameter& parameter) const;
  void hide_precise(ShardedParameter& parameter);

  UnitShards shards_;
  ShardPlace place_;
  ShardTraffic& traffic_;
  std::shared_ptr<BlockPool> pool_;
  State state_ = State::full;
  /// Shards in files that a gather reads.
  std::optional<HeldTensors> read_by_gather_;
  bool is_in_reshard_group_ = false;
  /// True from start_open() to close().
  bool is_open_ = false;
};

}  // namespace accelerate::detail
