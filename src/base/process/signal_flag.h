#pragma once

#include <span>
#include <vector>

namespace accelerate::detail {

/// Records that one of some signals has arrived, in place of the signal's usual
/// effect. Also calls the handler that the program had installed before.
/// Handlers are per process: several objects share them, and each sees every
/// signal that arrives while it lives.
class SignalFlag {
 public:
  /// Throws ConfigError for a signal that cannot be handled (SIGKILL, SIGSTOP).
  static void check(std::span<const int> signals);
  /// Throws as check().
  explicit SignalFlag(std::span<const int> signals);
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;
  /// The last object for a signal restores the previous handler.
  ~SignalFlag();

  /// The signal that has arrived, the last in the list if there are several; 0
  /// if none has.
  [[nodiscard]] int received() const;

 private:
  std::vector<int> signals_;
  std::vector<int> counts_;  ///< how often each had arrived before
};

}  // namespace accelerate::detail
