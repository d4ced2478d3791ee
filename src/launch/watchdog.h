#pragma once

#include <sys/types.h>

namespace accelerate::detail {

/// A small process that outlives the launcher, however that dies, and then
/// kills the process groups of the ranks, grandchildren included.
class Watchdog {
 public:
  /// Must be made before any rank, so that it does not hold their pipes, and
  /// before the launcher has threads.
  Watchdog();
  /// Lets it go without killing anything.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(pid_t process_group);
  /// It is gone, and its number may become somebody else's.
  void forget(pid_t process_group);

 private:
  void say(pid_t message) const;

  int pipe_ = -1;
  pid_t process_ = -1;
};

}  // namespace accelerate::detail
