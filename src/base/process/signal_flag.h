#pragma once

#include <span>
#include <vector>

namespace accelerate::detail {

/// Notes that one of some signals has come, instead of what it would have done.
/// A handler that the program installed before is called as well. The handlers
/// are those of the process: several objects share them, and each sees every
/// signal that comes while it lives.
class SignalFlag {
 public:
  /// Throws ConfigError for a signal that cannot be handled (SIGKILL, SIGSTOP).
  static void check(std::span<const int> signals);
  /// Throws as check().
  explicit SignalFlag(std::span<const int> signals);
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;
  /// The last object with a signal restores what was there before.
  ~SignalFlag();

  /// One of the signals that have come, the last in the list; 0 if none has.
  [[nodiscard]] int received() const;

 private:
  std::vector<int> signals_;
  std::vector<int> counts_;  ///< how often each had come before
};

}  // namespace accelerate::detail
