#include "cli/rank_group.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "cli/exit_reason.h"

namespace accelerate::cli {

namespace {

// The rank that failed takes its peers along, and not always dies first.
constexpr std::chrono::milliseconds kTimeToFindTheCause{300};
constexpr std::chrono::seconds kTimeToEnd{4};
// Grandchildren may hold a pipe open after their rank has gone.
constexpr std::chrono::seconds kTimeToDrain{1};

// Nobody dies of these because a peer did.
bool is_surely_the_cause(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return false;
  const int signal = WTERMSIG(wait_status);
  return signal == SIGKILL || signal == SIGSEGV || signal == SIGBUS ||
      signal == SIGILL || signal == SIGFPE;
}

}  // namespace

RankGroup::RankGroup(
    const LaunchPlan& plan,
    const Options& options,
    const Signals& signals,
    Watchdog* watchdog)
    : plan_(plan), options_(options), signals_(signals), watchdog_(watchdog) {
  const StartOptions start{watchdog != nullptr, options.attempt, options.port};
  ranks_.reserve(static_cast<std::size_t>(plan.processes_here()));
  try {
    for (int local = 0; local < plan.processes_here(); ++local) {
      ranks_.push_back(start_rank(plan, local, start));
      if (watchdog_ != nullptr) watchdog_->watch(ranks_.back().pid);
    }
  } catch (...) {
    send_to_all(SIGKILL);
    for (RankProcess& rank : ranks_) waitpid(rank.pid, nullptr, 0);
    throw;
  }
}

RankGroup::~RankGroup() {
  if (watchdog_ == nullptr) return;
  for (const RankProcess& rank : ranks_) watchdog_->forget(rank.pid);
}

GroupEnd RankGroup::run() {
  while (!is_over()) {
    wait_for_something();
    while (const auto info = signals_.next()) heed(*info);
    collect_dead();
    keep_deadlines();
  }
  // What the ranks started must not outlive a failure.
  if ((cause_ != nullptr || was_stopped_) && watchdog_ != nullptr) {
    for (const RankProcess& rank : ranks_) kill(-rank.pid, SIGKILL);
  }
  return summarize();
}

bool RankGroup::all_dead() const {
  return std::none_of(
      ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
        return rank.is_running;
      });
}

bool RankGroup::is_over() const {
  if (!all_dead()) return false;
  const bool all_silent =
      std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
        return rank.is_silent();
      });
  return all_silent || (drain_until_ && Clock::now() >= *drain_until_);
}

void RankGroup::wait_for_something() {
  std::vector<pollfd> waits{{signals_.descriptor(), POLLIN, 0}};
  if (options_.stop >= 0 && !was_stopped_) {
    waits.push_back({options_.stop, POLLIN, 0});
  }
  const std::size_t first_stream = waits.size();
  std::vector<std::pair<RankProcess*, RankStream*>> owners;
  for (RankProcess& rank : ranks_) {
    for (RankStream* stream : {&rank.out, &rank.err}) {
      if (!stream->is_open()) continue;
      waits.push_back({stream->pipe(), POLLIN, 0});
      owners.emplace_back(&rank, stream);
    }
  }
  poll(waits.data(), waits.size(), milliseconds_to_next_deadline());
  if (first_stream == 2 && waits[1].revents != 0) {
    was_stopped_ = true;
    terminate();
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (waits[first_stream + i].revents != 0) {
      owners[i].first->pump(*owners[i].second);
    }
  }
}

int RankGroup::milliseconds_to_next_deadline() const {
  std::optional<Clock::time_point> next;
  for (const auto& deadline : {terminate_at_, kill_at_, drain_until_}) {
    if (deadline && (!next || *deadline < *next)) next = deadline;
  }
  if (!next) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

void RankGroup::heed(const signalfd_siginfo& info) {
  const auto signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) return;
  // A terminal sends its signals to a rank of our own process group itself.
  if (watchdog_ != nullptr || info.ssi_code != SI_KERNEL) send_to_all(signal);
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
    received_ = signal;
    if (!kill_at_) kill_at_ = Clock::now() + kTimeToEnd;
  }
}

void RankGroup::collect_dead() {
  for (RankProcess& rank : ranks_) {
    if (!rank.is_running ||
        waitpid(rank.pid, &rank.wait_status, WNOHANG) != rank.pid)
      continue;
    rank.is_running = false;
    if (exit_code_of(rank.wait_status) != 0) note_failure(rank);
  }
  if (all_dead() && !drain_until_) drain_until_ = Clock::now() + kTimeToDrain;
}

void RankGroup::note_failure(RankProcess& rank) {
  // Deaths that we brought about say nothing.
  if (was_terminated_ || received_ != 0) return;
  // What it said last may still be in its pipe.
  candidates_.push_back(&rank);
  if (cause_ == nullptr) {
    cause_ = &rank;
    terminate_at_ = Clock::now() + kTimeToFindTheCause;
  }
  if (is_surely_the_cause(rank.wait_status)) terminate_at_ = Clock::now();
}

void RankGroup::terminate() {
  terminate_at_.reset();
  was_terminated_ = true;
  send_to_all(SIGTERM);
  if (!kill_at_) kill_at_ = Clock::now() + kTimeToEnd;
}

void RankGroup::keep_deadlines() {
  const auto now = Clock::now();
  if (terminate_at_ && now >= *terminate_at_) terminate();
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    send_to_all(SIGKILL);
  }
}

void RankGroup::send_to_all(int signal) {
  for (const RankProcess& rank : ranks_) {
    if (!rank.is_running) continue;
    kill(watchdog_ != nullptr ? -rank.pid : rank.pid, signal);
  }
}

GroupEnd RankGroup::summarize() const {
  GroupEnd end;
  end.was_stopped = was_stopped_;
  if (received_ != 0) {
    end.code = 128 + received_;
    end.was_told = true;
    return end;
  }
  if (cause_ == nullptr) return end;
  const auto sure = std::find_if(
      candidates_.begin(), candidates_.end(), [](const RankProcess* rank) {
        return is_surely_the_cause(rank->wait_status);
      });
  const auto innocent = std::find_if(
      candidates_.begin(), candidates_.end(), [](const RankProcess* rank) {
        return !rank->last_words.blames_others();
      });
  const RankProcess& cause = sure != candidates_.end() ? **sure
      : innocent != candidates_.end()                  ? **innocent
                                                       : *cause_;
  end.code = exit_code_of(cause.wait_status);
  end.reason = describe(cause);
  return end;
}

std::string RankGroup::describe(const RankProcess& cause) const {
  using detail::concat;
  if (watchdog_ == nullptr) {
    // Of an exit code, the program has said itself what it wanted to.
    if (!WIFSIGNALED(cause.wait_status)) return {};
    return concat(
        "accelerate-cpp: the program ", describe_exit(cause.wait_status), "\n");
  }
  std::string text = concat(
      "accelerate-cpp: rank ",
      cause.rank,
      " (process ",
      cause.pid,
      ") ",
      describe_exit(cause.wait_status),
      ranks_.size() > 1 ? "; the others were ended\n" : "\n");
  if (cause.last_words.lines().empty()) return text;
  text += "accelerate-cpp: its last words:\n";
  for (const std::string& line : cause.last_words.lines()) {
    text += "    " + line + "\n";
  }
  return text;
}

}  // namespace accelerate::cli
