#include "base/signal_flag.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

constexpr int kMostSignals = 65;

// What a process has once: its handlers. The counts are all that a handler may
// touch.
std::array<std::atomic<int>, kMostSignals> counts;
std::array<std::atomic<void (*)(int)>, kMostSignals> earlier;
std::array<struct sigaction, kMostSignals> before;
std::array<int, kMostSignals> num_users;
std::mutex mutex;

std::size_t index(int signal) { return static_cast<std::size_t>(signal); }

void note(int signal) {
  const int problem = errno;
  counts[index(signal)].fetch_add(1);
  if (void (*const handler)(int) = earlier[index(signal)].load())
    handler(signal);
  errno = problem;
}

void install(int signal) {
  if (num_users[index(signal)]++ > 0) return;
  struct sigaction action {};
  action.sa_handler = &note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(signal, nullptr, &before[index(signal)]);
  const struct sigaction& old = before[index(signal)];
  const bool is_function = (old.sa_flags & SA_SIGINFO) == 0 &&
      old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN;
  earlier[index(signal)] = is_function ? old.sa_handler : nullptr;
  sigaction(signal, &action, nullptr);
}

void uninstall(int signal) {
  if (--num_users[index(signal)] > 0) return;
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  // A handler that the program has installed meanwhile stays.
  if (now.sa_handler == &note)
    sigaction(signal, &before[index(signal)], nullptr);
}

}  // namespace

void SignalFlag::check(std::span<const int> signals) {
  for (const int signal : signals) {
    if (signal > 0 && signal < kMostSignals && signal != SIGKILL &&
        signal != SIGSTOP)
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
    install(signal);
    counts_.push_back(counts[index(signal)].load());
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
