#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/shard/sharded_parameter.h"

namespace accelerate::detail {

/// The ranks from which a unit's full parameters come: all that share the
/// model, or the neighbours that keep a replica among themselves
/// (ShardedParameter::kept_rows) from a forward to its backward.
enum class ShardSource { all_ranks, reshard_group };

/// How the shards of one model travel: full parameters to a rank, gradients to
/// the ranks that keep them. What is gathered when, and which unit is full, is
/// not its business (ShardUnit, UnshardSchedule, GradientReducer). All calls
/// have gradients off, and come from one thread at a time.
///
/// All ranks start the same unshards in the same order. Reductions they may
/// start in different orders, where they use different parameters: traffic that
/// needs one order on all ranks holds back what is early. No rank waits for a
/// reduction unless all it waits for have started it, or will, whatever that
/// rank does (ReductionOrder).
class ShardTraffic {
 public:
  ShardTraffic() = default;
  ShardTraffic(const ShardTraffic&) = delete;
  ShardTraffic& operator=(const ShardTraffic&) = delete;
  virtual ~ShardTraffic() = default;

  /// Units come in the order of their numbers; all ranks add the same.
  virtual void add_unit(const UnitShards& unit) = 0;
  /// Keeps up to so many bytes of the memory that it fetched for itself, for
  /// later use.
  virtual void keep_memory(std::int64_t up_to_bytes) = 0;

  /// Whether a parameter, and its gradient, does not wait for others of its
  /// unit.
  [[nodiscard]] virtual bool travels_alone(
      const ShardedParameter& parameter) const = 0;

  /// Begins to gather the parameters into `memory`, by their places in the
  /// unit: of the full shapes, where the model is; undefined where a parameter
  /// is full already. At most one per unit at a time.
  virtual void start_unshard(
      const UnitShards& unit,
      ShardSource source,
      std::vector<at::Tensor> memory) = 0;
  /// Waits, and returns the memory, which the present stream may read.
  virtual std::vector<at::Tensor> finish_unshard(const UnitShards& unit) = 0;
  /// The unit's full parameters are about to lose their memory.
  virtual void before_reshard(const UnitShards& unit) = 0;

  /// Whether take_gradient() only begins something (a copy to the host) for
  /// which start_reduce() has to wait, so that it had better come later.
  [[nodiscard]] virtual bool stages_gradients() const = 0;
  /// Takes the gradient of a parameter that travels alone, zeros if it has
  /// none.
  virtual void take_gradient(const UnitShards& unit, std::size_t place) = 0;
  /// Begins to reduce what was taken.
  virtual void start_reduce(const UnitShards& unit, std::size_t place) = 0;
  /// Waits for it. The mean is kept until finish_rest().
  virtual void finish_reduce(const UnitShards& unit, std::size_t place) = 0;
  /// Takes the other gradients of the unit, after all that travel alone have
  /// been started, and begins to reduce them. `mark` goes with them.
  virtual void start_rest(const UnitShards& unit, std::uint64_t mark) = 0;
  /// Waits for all that was started of the unit, and adds the means over the
  /// ranks to the shards' gradients; a parameter that no rank used gets none.
  /// Sums run in the order of the ranks, so results do not depend on timing.
  /// Returns whether all ranks' marks are alike. The next backward may begin.
  virtual bool finish_rest(const UnitShards& unit) = 0;

  /// After a failure: what is under way of the unit is left alone.
  virtual void abandon(const UnitShards& unit) = 0;
};

}  // namespace accelerate::detail
