#pragma once

#include <csignal>
#include <optional>

#include <sys/signalfd.h>

namespace accelerate::cli {

/// Thrown where a launcher waits for others and somebody ends it.
struct Stopped {
  int signal;
};

/// The signals a launcher hears of, as a descriptor. They are blocked while
/// this lives, also in threads that are started meanwhile.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::optional<signalfd_siginfo> next() const;
  /// While there are no ranks to pass signals on to. Throws Stopped.
  void heed() const;

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

}  // namespace accelerate::cli
