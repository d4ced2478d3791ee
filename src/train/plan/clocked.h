#pragma once

#include <functional>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Times calls that all ranks make at once. A round lasts many of the turns that
/// ranks take on shared processors, and ends when the last rank has ended: a
/// single call may have been lucky. `world` must outlive the object.
///
/// All calls together take about so many seconds, if two calls of each are not
/// longer: the less is left, the shorter and the fewer are rounds. What is left is
/// the mean over the ranks, so that all of them make as many calls.
class Clocked {
 public:
  Clocked(const World& world, double seconds) : world_(world), left_(seconds) {}

  /// Seconds of one call, the same on all ranks.
  [[nodiscard]] double seconds_of(const std::function<void()>& call);

  /// Seconds that may still be taken; below 0 if more were.
  [[nodiscard]] double left() const { return left_; }

 private:
  [[nodiscard]] double round(int count, const std::function<void()>& call);

  const World& world_;
  double left_;
};

}  // namespace accelerate::detail
