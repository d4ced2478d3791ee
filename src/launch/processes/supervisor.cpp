#include "launch/processes/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include <poll.h>
#include <sys/wait.h>

namespace accelerate::detail {

namespace {

// A failed rank brings its peers down, but does not always die first.
constexpr std::chrono::milliseconds kTimeToFindTheCause{300};
constexpr std::chrono::seconds kTimeToEnd{4};
// Grandchildren may hold a pipe open after their rank has gone.
constexpr std::chrono::seconds kTimeToDrain{1};

bool is_silent(const Supervisor::Rank& rank) {
  return std::ranges::none_of(rank.sources, [](const EventSource* source) {
    return source->descriptor() >= 0;
  });
}

}  // namespace

namespace {

// Reads what a process wrote before it ended: at most what pipes hold, since
// its children may continue writing.
void drain(const Supervisor::Rank& rank) {
  constexpr int kMostReads = 32;
  for (EventSource* const source : rank.sources) {
    for (int i = 0; i < kMostReads && source->descriptor() >= 0; ++i) {
      pollfd wait{source->descriptor(), POLLIN, 0};
      if (poll(&wait, 1, 0) <= 0) break;
      source->read();
    }
  }
}

}  // namespace

void Supervisor::add(pid_t pid, std::vector<EventSource*> sources) {
  ranks_.push_back({pid, std::move(sources)});
  drain_until_.reset();
}

void Supervisor::run() {
  keep_interval();
  while (!is_over()) {
    wait_for_something();
    if (options_.signals != nullptr) options_.signals->read();
    collect_dead();
    keep_deadlines();
    keep_interval();
  }
  if (options_.has_groups && (!failures_.empty() || was_terminated_)) {
    for (const Rank& rank : ranks_) {
      if (!rank.has_left) kill(-rank.pid, SIGKILL);
    }
  }
}

void Supervisor::kill_and_wait() {
  send_to_all(SIGKILL);
  for (Rank& rank : ranks_) {
    if (!rank.is_running) continue;
    while (waitpid(rank.pid, &rank.wait_status, 0) < 0 && errno == EINTR) {
    }
    rank.is_running = false;
  }
}

bool Supervisor::all_dead() const {
  return std::ranges::none_of(ranks_, &Rank::is_running);
}

bool Supervisor::is_over() const {
  if (!all_dead()) return false;
  if (options_.awaits_more && options_.awaits_more()) return false;
  return std::ranges::all_of(ranks_, is_silent) ||
      (drain_until_ && Clock::now() >= *drain_until_);
}

int Supervisor::gate_of(const EventSource& source) const {
  return was_terminated_ || expects_end_ ? -1 : source.gate();
}

void Supervisor::wait_for_something() {
  std::vector<pollfd> waits;
  std::vector<EventSource*> sources;
  const auto wait_for = [&](EventSource* source) {
    if (source == nullptr || source->descriptor() < 0) return;
    const int gate = gate_of(*source);
    waits.push_back({gate >= 0 ? gate : source->descriptor(), POLLIN, 0});
    sources.push_back(gate >= 0 ? nullptr : source);
  };
  wait_for(options_.event);
  for (const Rank& rank : ranks_) {
    for (EventSource* source : rank.sources) wait_for(source);
  }
  // run() reads signals after every wait.
  if (options_.signals != nullptr) {
    waits.push_back({options_.signals->descriptor(), POLLIN, 0});
  }
  poll(waits.data(), waits.size(), milliseconds_to_next_deadline());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (waits[i].revents == 0 || sources[i] == nullptr) continue;
    // Another source may have closed the gate meanwhile.
    if (gate_of(*sources[i]) < 0) sources[i]->read();
  }
}

int Supervisor::milliseconds_to_next_deadline() const {
  std::optional<Clock::time_point> next;
  for (const auto& deadline :
       {terminate_at_, kill_at_, drain_until_, next_interval_}) {
    if (deadline && (!next || *deadline < *next)) next = deadline;
  }
  if (!next) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

void Supervisor::collect_dead() {
  // Ranks added in the meantime cannot have ended yet.
  const std::size_t num_ranks = ranks_.size();
  for (std::size_t i = 0; i < num_ranks; ++i) {
    Rank& rank = ranks_[i];
    if (!rank.is_running) continue;
    if (options_.signals == nullptr) {
      if (!is_silent(rank)) continue;
      // Its pipes are closed, so it is about to end.
      while (waitpid(rank.pid, &rank.wait_status, 0) < 0 && errno == EINTR) {
      }
    } else if (waitpid(rank.pid, &rank.wait_status, WNOHANG) != rank.pid) {
      continue;
    }
    rank.is_running = false;
    if (options_.on_end) {
      drain(rank);
      options_.on_end(i);
    }
    if (rank.wait_status != 0) note_failure(i);
  }
  if (all_dead() && !drain_until_) drain_until_ = Clock::now() + kTimeToDrain;
}

void Supervisor::note_failure(std::size_t index) {
  // Ignores ends that the supervisor itself caused.
  if (was_terminated_ || expects_end_) return;
  if (options_.is_made_good && failures_.empty() &&
      options_.is_made_good(index)) {
    forget(index);
    return;
  }
  failures_.push_back(index);
  const auto now = Clock::now();
  if (failures_.size() == 1) terminate_at_ = now + kTimeToFindTheCause;
  if (options_.is_surely_the_cause != nullptr &&
      options_.is_surely_the_cause(ranks_[index].wait_status)) {
    terminate_at_ = now;
  }
}

void Supervisor::give_up(std::size_t index) {
  if (was_terminated_ || expects_end_) return;
  failures_.push_back(index);
  terminate();
}

void Supervisor::set_interval(std::chrono::milliseconds interval) {
  if (interval == options_.interval) return;
  options_.interval = interval;
  next_interval_ = Clock::now() + interval;
}

void Supervisor::terminate() {
  terminate_at_.reset();
  was_terminated_ = true;
  end_all(SIGTERM);
  if (!kill_at_) kill_at_ = Clock::now() + kTimeToEnd;
}

void Supervisor::expect_end(std::chrono::milliseconds time) {
  expects_end_ = true;
  // A second signal does not extend the time.
  const auto end = Clock::now() + time;
  if (!kill_at_ || end < *kill_at_) kill_at_ = end;
}

void Supervisor::keep_deadlines() {
  const auto now = Clock::now();
  if (terminate_at_ && now >= *terminate_at_) terminate();
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    end_all(SIGKILL);
  }
}

void Supervisor::keep_interval() {
  if (options_.interval.count() == 0) return;
  const auto now = Clock::now();
  if (next_interval_ && now < *next_interval_) return;
  next_interval_ = now + options_.interval;
  options_.on_interval();
}

void Supervisor::end_all(int signal) {
  for (Rank& rank : ranks_) {
    if (rank.is_running) rank.ended_with = signal;
  }
  send_to_all(signal);
}

void Supervisor::send_to_all(int signal) const {
  for (const Rank& rank : ranks_) {
    if (!rank.is_running) continue;
    kill(options_.has_groups ? -rank.pid : rank.pid, signal);
  }
}

std::optional<std::size_t> find_cause(std::span<const Suspect> suspects) {
  if (suspects.empty()) return std::nullopt;
  const auto sure =
      std::ranges::find_if(suspects, &Suspect::is_surely_the_cause);
  if (sure != suspects.end()) return sure->rank;
  const auto non_victim = std::ranges::find_if(
      suspects, [](const Suspect& suspect) { return !suspect.is_victim; });
  return (non_victim != suspects.end() ? *non_victim : suspects.front()).rank;
}

bool is_surely_the_cause(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return false;
  const int signal = WTERMSIG(wait_status);
  return signal == SIGKILL || signal == SIGSEGV || signal == SIGBUS ||
      signal == SIGILL || signal == SIGFPE;
}

}  // namespace accelerate::detail
