#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "parallel/shard/reduction/reduction_order.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/shard_unit.h"

namespace accelerate::detail {

/// Reduces the gradients of all units in each backward: decides what is reduced
/// when, and where this rank can wait.
class GradientReducer {
 public:
  /// `units` must outlive the object. `comparing`: the traffic that reaches all
  /// ranks of the shard group, among which orders are compared; the traffic of
  /// other units reaches only some of them. `on_reduced`: called when the
  /// shards of a unit have their gradients.
  GradientReducer(
      const std::vector<std::unique_ptr<ShardUnit>>& units,
      const ShardTraffic& comparing,
      std::function<void(std::size_t unit)> on_reduced);

  /// Called when a backward begins.
  void begin();
  /// Called when the gradient at `place` among the trainable parameters of
  /// `unit` is complete.
  void send(std::size_t unit, std::size_t place);
  /// Called when this backward has computed all its gradients.
  void end_gradients() { order_.end_gradients(); }
  /// Called when the remaining parameters of `unit` get no gradients on this
  /// rank.
  void complete(std::size_t unit);
  /// Called early in a backward that will give `unit` no gradients. Returns
  /// whether the unit is now complete.
  bool pass_by(std::size_t unit);
  /// Called before a gradient of `unit`: bounds the memory of reductions in
  /// flight, by waiting for those that cannot cause a deadlock.
  void make_room(std::size_t unit);
  /// Called when all units are complete: waits for everything. `is_usual`:
  /// later backwards are likely to be like this one.
  void finish(bool is_usual);
  /// Called after a failure; the units must also be abandoned.
  void abandon();

 private:
  /// The gradients of a unit that were taken in this backward.
  struct Progress {
    std::vector<bool> is_taken;  // by place
    bool is_complete = false;
  };

  [[nodiscard]] const UnitShards& shards(std::size_t unit) const {
    return units_[unit]->shards();
  }
  [[nodiscard]] ShardTraffic& traffic(std::size_t unit) const {
    return units_[unit]->traffic();
  }
  /// The model's traffic, and that of its experts if there is one.
  [[nodiscard]] std::set<ShardTraffic*> traffics() const;
  [[nodiscard]] bool is_sent_alone(std::size_t unit, std::size_t place) const;
  void take(std::size_t unit, std::size_t place);
  void flush_staged();
  void note(const GradientMessage& message);
  void wait_for(const GradientMessage& message);
  void wait_for_all();

  const std::vector<std::unique_ptr<ShardUnit>>& units_;
  const ShardTraffic& comparing_;
  std::function<void(std::size_t)> on_reduced_;
  ReductionOrder order_;
  std::vector<Progress> progress_;
  /// The gradient whose copy to the host was started last.
  std::optional<GradientMessage> taken_;
  /// Messages that were sent and not waited for.
  std::vector<GradientMessage> in_flight_;
  bool all_alike_ = true;
};

}  // namespace accelerate::detail
