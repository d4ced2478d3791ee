#include "cli/rank_group.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <vector>

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "cli/exit_reason.h"
#include "cli/rank_process.h"
#include "cli/watchdog.h"

namespace accelerate::cli {

namespace {

using Clock = std::chrono::steady_clock;

// The rank that failed takes its peers along, and not always dies first.
constexpr std::chrono::milliseconds kTimeToFindTheCause{300};
constexpr std::chrono::seconds kTimeToEnd{4};
// Grandchildren may hold a pipe open after their rank has gone.
constexpr std::chrono::seconds kTimeToDrain{1};

/// The signals a launcher hears of, as a descriptor.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal :
         {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
      sigaddset(&set, signal);
    }
    sigprocmask(SIG_BLOCK, &set, &before_);
    signal(SIGPIPE, SIG_IGN);
    descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Signals() {
    close(descriptor_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::optional<signalfd_siginfo> next() const {
    signalfd_siginfo info{};
    if (read(descriptor_, &info, sizeof info) ==
        static_cast<ssize_t>(sizeof info))
      return info;
    return std::nullopt;
  }

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

class RankGroup {
 public:
  explicit RankGroup(const LaunchPlan& plan)
      : is_isolated_(plan.environments.size() > 1) {
    const auto count = static_cast<int>(plan.environments.size());
    if (is_isolated_) watchdog_.emplace();
    try {
      for (int rank = 0; rank < count; ++rank) {
        ranks_.push_back(start_rank(plan, rank, {.is_isolated = is_isolated_}));
        if (watchdog_) watchdog_->watch(ranks_.back().pid);
      }
    } catch (...) {
      send_to_all(SIGKILL);
      for (RankProcess& rank : ranks_) waitpid(rank.pid, nullptr, 0);
      throw;
    }
  }

  int run() {
    while (!is_over()) {
      wait_for_something();
      while (const auto info = signals_.next()) heed(*info);
      collect_dead();
      keep_deadlines();
    }
    // What the ranks started must not outlive a failure.
    if (cause_ && is_isolated_) send_to_groups(SIGKILL);
    return report();
  }

 private:
  [[nodiscard]] bool is_over() const {
    const bool all_dead =
        std::none_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
          return rank.is_running;
        });
    if (!all_dead) return false;
    const bool all_silent =
        std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
          return rank.is_silent();
        });
    return all_silent || (drain_until_ && Clock::now() >= *drain_until_);
  }

  void wait_for_something() {
    std::vector<pollfd> waits{{signals_.descriptor(), POLLIN, 0}};
    std::vector<std::pair<RankProcess*, RankStream*>> owners{
        {nullptr, nullptr}};
    for (RankProcess& rank : ranks_) {
      for (RankStream* stream : {&rank.out, &rank.err}) {
        if (stream->pipe < 0) continue;
        waits.push_back({stream->pipe, POLLIN, 0});
        owners.emplace_back(&rank, stream);
      }
    }
    poll(waits.data(), waits.size(), milliseconds_to_next_deadline());
    for (std::size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents != 0) owners[i].first->pump(*owners[i].second);
    }
  }

  [[nodiscard]] int milliseconds_to_next_deadline() const {
    std::optional<Clock::time_point> next;
    for (const auto& deadline : {terminate_at_, kill_at_, drain_until_}) {
      if (deadline && (!next || *deadline < *next)) next = deadline;
    }
    if (!next) return -1;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  void heed(const signalfd_siginfo& info) {
    const auto signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) return;
    // A terminal sends its signals to a rank of our own process group itself.
    if (is_isolated_ || info.ssi_code != SI_KERNEL) send_to_all(signal);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      received_ = signal;
      if (!kill_at_) kill_at_ = Clock::now() + kTimeToEnd;
    }
  }

  void collect_dead() {
    for (RankProcess& rank : ranks_) {
      if (!rank.is_running ||
          waitpid(rank.pid, &rank.wait_status, WNOHANG) != rank.pid)
        continue;
      rank.is_running = false;
      if (exit_code_of(rank.wait_status) != 0) note_failure(rank);
    }
    const bool all_dead =
        std::none_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
          return rank.is_running;
        });
    if (all_dead && !drain_until_) drain_until_ = Clock::now() + kTimeToDrain;
  }

  void note_failure(RankProcess& rank) {
    // Deaths that we brought about say nothing.
    if (was_terminated_ || received_ != 0) return;
    // What it said last may still be in its pipe.
    candidates_.push_back(&rank);
    if (!cause_) {
      cause_ = &rank;
      terminate_at_ = Clock::now() + kTimeToFindTheCause;
    }
  }

  void keep_deadlines() {
    const auto now = Clock::now();
    if (terminate_at_ && now >= *terminate_at_) {
      terminate_at_.reset();
      was_terminated_ = true;
      send_to_all(SIGTERM);
      if (!kill_at_) kill_at_ = now + kTimeToEnd;
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      send_to_all(SIGKILL);
    }
  }

  void send_to_all(int signal) {
    for (const RankProcess& rank : ranks_) {
      if (rank.is_running) kill(is_isolated_ ? -rank.pid : rank.pid, signal);
    }
  }

  void send_to_groups(int signal) {
    for (const RankProcess& rank : ranks_) kill(-rank.pid, signal);
  }

  int report() {
    if (received_ != 0) return 128 + received_;
    if (!cause_) return 0;
    const auto innocent = std::find_if(
        candidates_.begin(), candidates_.end(), [](const RankProcess* rank) {
          return !rank->blames_others;
        });
    const RankProcess& cause =
        innocent == candidates_.end() ? *cause_ : **innocent;
    std::string text;
    if (is_isolated_) {
      text = detail::concat(
          "accelerate-cpp: rank ",
          cause.rank,
          " (process ",
          cause.pid,
          ") ",
          describe_exit(cause.wait_status),
          "; the others were ended\n");
      if (!cause.last_words.empty()) {
        text += "accelerate-cpp: its last words:\n";
        for (const std::string& line : cause.last_words)
          text += "    " + line + "\n";
      }
    } else if (WIFSIGNALED(cause.wait_status)) {
      text = detail::concat(
          "accelerate-cpp: the program ",
          describe_exit(cause.wait_status),
          "\n");
    }
    (void)!write(STDERR_FILENO, text.data(), text.size());
    return exit_code_of(cause.wait_status);
  }

  bool is_isolated_;
  Signals signals_;
  std::optional<Watchdog> watchdog_;
  std::vector<RankProcess> ranks_;
  std::vector<RankProcess*> candidates_;
  RankProcess* cause_ = nullptr;
  int received_ = 0;
  bool was_terminated_ = false;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> drain_until_;
};

}  // namespace

int run_ranks(const LaunchPlan& plan) { return RankGroup(plan).run(); }

}  // namespace accelerate::cli
