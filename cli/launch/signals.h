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
  /// Handles pending signals while no ranks run: throws Stopped for signals
  /// that end the launcher.
  void heed() const;

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

}  // namespace accelerate::cli
