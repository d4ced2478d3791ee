#pragma once

#include <functional>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Times calls that all ranks make at once. A round lasts many of the turns that
/// ranks take on shared processors, and ends when the last rank has ended: a
/// single call may have been lucky. `world` must outlive the object.
class Clocked {
 public:
  explicit Clocked(const World& world) : world_(world) {}

  /// Seconds of one call, the same on all ranks.
  [[nodiscard]] double seconds_of(const std::function<void()>& call) const;

 private:
  [[nodiscard]] double round(int count, const std::function<void()>& call)
      const;

  const World& world_;
};

}  // namespace accelerate::detail
