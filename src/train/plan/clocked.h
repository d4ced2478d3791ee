#pragma once

#include <functional>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Times calls that all ranks make at once. A round spans many of the turns
/// that ranks take on shared processors, since a single call can be lucky, and
/// ends when the last rank ends. `world` must outlive the object.
///
/// All calls together take about `seconds`, unless two of each take longer:
/// rounds get shorter and fewer as time runs out. The time left is averaged
/// over the ranks, so that all make the same number of calls.
class Clocked {
 public:
  Clocked(const World& world, double seconds) : world_(world), left_(seconds) {}

  /// Seconds of one call, the same on all ranks.
  [[nodiscard]] double seconds_of(const std::function<void()>& call);

  /// Seconds that are left; negative if overspent.
  [[nodiscard]] double left() const { return left_; }

 private:
  [[nodiscard]] double round(int count, const std::function<void()>& call);

  const World& world_;
  double left_;
};

}  // namespace accelerate::detail
