#pragma once

#include <csignal>
#include <optional>

#include <sys/signalfd.h>

namespace accelerate::cli {

/// Thrown if a signal ends a launcher that is waiting for others.
struct Stopped {
  int signal;
};

/// The signals of a launcher as a descriptor. They are blocked during the
/// lifetime of this object, also in threads started meanwhile.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::optional<signalfd_siginfo> next() const;
  /// Whether next() has returned a signal that ends the launcher.
  [[nodiscard]] bool is_told_to_end() const { return is_told_to_end_; }
  /// Handles pending signals while no ranks run. Throws Stopped for signals
  /// that end the launcher.
  void heed() const;

 private:
  sigset_t before_{};
  int descriptor_ = -1;
  mutable bool is_told_to_end_ = false;
};

}  // namespace accelerate::cli
