#include "base/process/signal_flag.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr int kMostSignals = 65;

// Handlers are per process. They only count, and read what was written before
// they were installed.
std::array<std::atomic<int>, kMostSignals> counts;
std::array<struct sigaction, kMostSignals> before;
std::array<int, kMostSignals> num_users;
std::mutex mutex;

std::size_t index(int signal) { return static_cast<std::size_t>(signal); }

void note(int signal, siginfo_t* details, void* context) {
  const int problem = errno;
  counts[index(signal)].fetch_add(1);
  const struct sigaction& earlier = before[index(signal)];
  if ((earlier.sa_flags & SA_SIGINFO) != 0) {
    earlier.sa_sigaction(signal, details, context);
  } else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
    earlier.sa_handler(signal);
  }
  errno = problem;
}

void install(int signal) {
  if (num_users[index(signal)]++ > 0) return;
  sigaction(signal, nullptr, &before[index(signal)]);
  struct sigaction action {};
  action.sa_sigaction = &note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(signal, &action, nullptr);
}

void uninstall(int signal) {
  if (--num_users[index(signal)] > 0) return;
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  // A handler that the program has installed since is left in place.
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &note)
    sigaction(signal, &before[index(signal)], nullptr);
}

}  // namespace

void SignalFlag::check(std::span<const int> signals) {
  for (const int signal : signals) {
    // glibc reserves two signals.
    struct sigaction now {};
    if (signal > 0 && signal < kMostSignals && signal != SIGKILL &&
        signal != SIGSTOP && sigaction(signal, nullptr, &now) == 0)
      continue;
    throw ConfigError(format(
        "[base] signal {} cannot be handled; use another one, such as SIGTERM "
        "({}) or SIGUSR1 ({})",
        signal,
        SIGTERM,
        SIGUSR1));
  }
}

SignalFlag::SignalFlag(std::span<const int> signals)
    : signals_(signals.begin(), signals.end()) {
  check(signals_);
  const std::lock_guard lock(mutex);
  for (const int signal : signals_) {
    counts_.push_back(counts[index(signal)].load());
    install(signal);
  }
}

SignalFlag::~SignalFlag() {
  const std::lock_guard lock(mutex);
  for (const int signal : signals_) uninstall(signal);
}

int SignalFlag::received() const {
  int last = 0;
  for (std::size_t i = 0; i < signals_.size(); ++i) {
    if (counts[index(signals_[i])].load() != counts_[i]) last = signals_[i];
  }
  return last;
}

}  // namespace accelerate::detail
