#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/reduce_order.h"
#include "parallel/shard_unit.h"

namespace accelerate::detail {

/// The gradients of all units on their way, in one backward after another.
class GradientMessages {
 public:
  /// `units` must outlive it. `waits_for_copies`: gradients are on a device, and
  /// are sent when the next one has begun its way to the host.
  GradientMessages(
      const std::vector<std::unique_ptr<ShardUnit>>& units,
      bool waits_for_copies);

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
  /// After a failure.
  void abandon();

 private:
  void take(std::size_t unit, std::size_t place);
  void send_taken();
  void note(const GradientMessage& message);
  void wait_for(const GradientMessage& message);
  void wait_for_all();

  const std::vector<std::unique_ptr<ShardUnit>>& units_;
  bool waits_for_copies_;
  ReduceOrder order_;
  /// A gradient on its way to the host.
  std::optional<GradientMessage> taken_;
  /// Sent, and not waited for.
  std::vector<GradientMessage> in_flight_;
  bool all_alike_ = true;
};

}  // namespace accelerate::detail
