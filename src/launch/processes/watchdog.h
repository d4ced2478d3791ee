#pragma once

#include <sys/types.h>

namespace accelerate::detail {

/// A small process that outlives the launcher, however the launcher ends, and
/// then kills the ranks' process groups, including grandchildren.
class Watchdog {
 public:
  /// Must be constructed before any rank starts, so that it does not inherit
  /// their pipes, and before the launcher has threads.
  Watchdog();
  /// Dismisses the process without killing anything.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(pid_t process_group);
  /// Stops watching a group that has ended: its id may be reused.
  void forget(pid_t process_group);

 private:
  void send(pid_t message) const;

  int pipe_ = -1;
  pid_t process_ = -1;
};

}  // namespace accelerate::detail
