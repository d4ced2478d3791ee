#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/shard/reduction_order.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/shard_unit.h"

namespace accelerate::detail {

/// The gradients of all units on their way, in one backward after another:
/// what is reduced when, and where this rank may wait.
class GradientReducer {
 public:
  /// Both must outlive it.
  GradientReducer(
      const std::vector<std::unique_ptr<ShardUnit>>& units,
      ShardTraffic& traffic);

  /// A backward begins.
  void begin();
  /// The gradient at `place` among those of `unit` that are trained is
  /// complete.
  void send(std::size_t unit, std::size_t place);
  /// No gradient will come any more.
  void end_gradients() { order_.end_gradients(); }
  /// The others of `unit` get none on this rank.
  void complete(std::size_t unit);
  /// Bounds the memory of what is under way, ahead of a gradient of `unit`,
  /// where that keeps nobody waiting.
  void make_room(std::size_t unit);
  /// All units are complete: waits for everything. `is_usual`: later backwards
  /// may be like this one.
  void finish(bool is_usual);
  /// After a failure; the units are abandoned, too.
  void abandon();

 private:
  /// What of a unit's gradients was taken in this backward.
  struct Progress {
    std::vector<bool> is_taken;  // by place
    bool is_complete = false;
  };

  [[nodiscard]] const UnitShards& shards(std::size_t unit) const {
    return units_[unit]->shards();
  }
  [[nodiscard]] bool travels_alone(std::size_t unit, std::size_t place) const;
  void take(std::size_t unit, std::size_t place);
  void send_taken();
  void note(const GradientMessage& message);
  void wait_for(const GradientMessage& message);
  void wait_for_all();

  const std::vector<std::unique_ptr<ShardUnit>>& units_;
  ShardTraffic& traffic_;
  ReductionOrder order_;
  std::vector<Progress> progress_;
  /// A gradient whose copy to the host was begun.
  std::optional<GradientMessage> taken_;
  /// Sent, and not waited for.
  std::vector<GradientMessage> in_flight_;
  bool all_alike_ = true;
};

}  // namespace accelerate::detail
