#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"
#include "parallel/shard/copy_stream.h"
#include "parallel/shard/row_pack.h"
#include "parallel/shard/sharded_parameter.h"

namespace accelerate::detail {

/// Reduces the gradients of one unit once, from device to device, to the ranks
/// that keep their shards: each large gradient by a collective of its own, then
/// the small ones together with flags that say what was used. Collectives begin
/// in the same order on all ranks: the large gradients from the last to the
/// first, then the rest. Only settle() may have the host wait.
class DeviceReduction {
 public:
  /// `unit` must outlive the object.
  DeviceReduction(const UnitShards& unit, Group group);

  /// Takes the gradient at `place`, if there is one.
  void take(std::size_t place);
  /// Takes the small gradients. Everything is taken then.
  void take_rest();
  [[nodiscard]] bool is_taken() const { return is_rest_taken_; }

  /// Whether the next collective has what it needs.
  [[nodiscard]] bool can_begin() const;
  void begin_next();
  [[nodiscard]] bool has_begun_all() const {
    return next_ > large_places_.size();
  }
  /// Has the current stream wait for what was begun, which frees the gradients'
  /// memory in its order.
  void join();

  /// Waits for the collectives, and begins to bring means to shards in host
  /// memory.
  void begin_settling(const CopyStream& copies);
  /// Adds the means over the ranks to the shards' gradients, those of
  /// parameters that some rank used. begin_settling() comes before. The host waits if it keeps the shards, or
  /// if this rank did not use a parameter, so that it needs the others' flags.
  void settle();

 private:
  /// A gradient, or what was reduced of it.
  struct Taken {
    at::Tensor gradient = {};
    /// This rank's rows of the sum, undefined before they are begun.
    at::Tensor sum = {};
    bool is_taken = false;
    bool was_used = false;
  };
  /// Small gradients with one dtype.
  struct Pack {
    at::ScalarType dtype;
    RowPack layout;
    std::vector<std::size_t> places = {};
    at::Tensor sum = {};
  };

  [[nodiscard]] at::Tensor gradient_of(std::size_t place);
  void begin_large(std::size_t place);
  void begin_rest();
  void begin_pack(Pack& pack);
  Pack& pack_with(at::ScalarType dtype);
  [[nodiscard]] std::vector<at::Tensor> means() const;
  /// Whether any rank used the parameter at each place. The host waits.
  [[nodiscard]] std::vector<bool> used_by_any() const;

  const UnitShards& unit_;
  Group group_;
  c10::Device device_;
  std::vector<Taken> taken_;  // by place
  std::vector<std::size_t> large_places_;
  bool is_rest_taken_ = false;
  /// Index in large_places_ of what begins next; then the rest.
  std::size_t next_ = 0;
  std::vector<Pack> packs_;
  /// Where the flags are: in this pack, from this byte on.
  std::size_t flags_pack_ = 0;
  std::int64_t flags_begin_ = 0;
  /// By place, once begin_settling() was called; those that it copies to the host,
  /// and the end of these copies.
  std::vector<at::Tensor> means_;
  std::vector<at::Tensor> copied_;
  std::optional<c10::Event> copies_end_;
  std::vector<BegunExchange> in_flight_;
  /// Inputs of `in_flight_`.
  std::vector<at::Tensor> inputs_;
};

}  // namespace accelerate::detail
