#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/shard/sharded_parameter.h"

namespace accelerate::detail {

/// The communication of one model's shards: gathers full parameters, and
/// reduces gradients to the ranks that keep their shards. ShardUnit,
/// UnshardSchedule and GradientReducer decide when, and which unit is full. All
/// calls are made with gradients disabled, from one thread at a time.
///
/// All ranks start the same unshards in the same order. Reductions may start in
/// different orders if ranks use different parameters: traffic that needs one
/// order on all ranks defers early ones (has_one_order()). A rank waits for a
/// reduction only if all ranks have started it, or will start it regardless of
/// what that rank does (ReductionOrder).
class ShardTraffic {
 public:
  ShardTraffic() = default;
  ShardTraffic(const ShardTraffic&) = delete;
  ShardTraffic& operator=(const ShardTraffic&) = delete;
  virtual ~ShardTraffic() = default;

  /// Units are added in the order of their numbers, the same on all ranks.
  virtual void add_unit(const UnitShards& unit) = 0;
  /// Lets the traffic keep up to `up_to_bytes` of its own memory for later use.
  virtual void keep_memory(std::int64_t up_to_bytes) = 0;

  /// Whether a parameter and its gradient have messages of their own instead of
  /// sharing the unit's.
  [[nodiscard]] virtual bool is_sent_alone(
      const ShardedParameter& parameter) const = 0;

  /// Called when a forward begins. `records`: a backward may follow.
  virtual void begin_forward(bool /*records*/) {}
  /// Called when a backward begins.
  virtual void begin_backward() {}

  /// Starts gathering the parameters into `memory`: one tensor per parameter of
  /// the unit, of the full shape, on the model's device; undefined for
  /// parameters that are already full. At most one unshard per unit at a time.
  virtual void start_unshard(
      const UnitShards& unit,
      ShardSource source,
      std::vector<at::Tensor> memory) = 0;
  /// Waits, and returns the memory, ready to be read on the current stream.
  virtual std::vector<at::Tensor> finish_unshard(const UnitShards& unit) = 0;
  /// Called before the unit's full parameters lose their memory.
  virtual void before_reshard(const UnitShards& unit) = 0;

  /// True if the traffic begins reductions in an order of its own, the same on
  /// all ranks, when the gradients that come before are there; it then also
  /// decides when to wait, and finish_reduce() and finish_rest() do nothing.
  [[nodiscard]] virtual bool has_one_order() const { return false; }
  /// True if take_gradient() only starts a copy to the host. start_reduce()
  /// waits for that copy, so it is better called later.
  [[nodiscard]] virtual bool stages_gradients() const = 0;
  /// Takes the gradient of a parameter that travels alone; zeros if it has
  /// none.
  virtual void take_gradient(const UnitShards& unit, std::size_t place) = 0;
  /// Starts reducing the gradient taken by take_gradient().
  virtual void start_reduce(const UnitShards& unit, std::size_t place) = 0;
  /// Waits for that reduction. The mean is kept until finish_rest().
  virtual void finish_reduce(const UnitShards& unit, std::size_t place) = 0;
  /// Takes the unit's other gradients and starts reducing them, together with
  /// `order_hash`. Called after all reductions of gradients that travel alone
  /// have been started.
  virtual void start_rest(const UnitShards& unit, std::uint64_t order_hash) = 0;
  /// Waits for all reductions of the unit, and adds the means over the ranks to
  /// the shards' gradients; a parameter that no rank used gets none. Sums are
  /// taken in rank order, so results do not depend on timing. Returns whether
  /// the hashes of all ranks are equal. Afterwards the next backward may begin.
  virtual bool finish_rest(const UnitShards& unit) = 0;
  /// Called when all reductions of a backward have been finished. Traffic with
  /// an order of its own now does what finish_rest() says, with sums in the
  /// order of its collectives.
  virtual void end_backward() {}

  /// Called after a failure: drops the unit's communication in flight.
  virtual void abandon(const UnitShards& unit) = 0;
};

}  // namespace accelerate::detail
