#include "cli/launch/ranks/rank_group.h"

#include <csignal>
#include <optional>

#include <sys/wait.h>

#include "base/text.h"
#include "launch/exit_reason.h"

namespace accelerate::cli {

RankGroup::RankGroup(
    const LaunchPlan& plan,
    const Options& options,
    const Signals& signals,
    detail::Watchdog* watchdog)
    : plan_(plan),
      signals_(signals),
      watchdog_(watchdog),
      on_signal_(
          signals.descriptor(),
          [this] {
            while (const auto info = signals_.next()) handle(*info);
          }),
      on_stop_(options.stop, [this] { stop(); }),
      supervisor_(
          {.signals = &on_signal_,
           .event = &on_stop_,
           .has_groups = watchdog != nullptr,
           .is_surely_the_cause = detail::is_surely_the_cause}) {
  const StartOptions start{watchdog != nullptr, options.attempt, options.store};
  try {
    for (int local = 0; local < plan_.processes_here(); ++local) {
      RankProcess& rank = *ranks_.emplace_back(start_rank(plan_, local, start));
      supervisor_.add(rank.pid, {&rank.out, &rank.err});
      if (watchdog_ != nullptr) watchdog_->watch(rank.pid);
    }
  } catch (...) {
    supervisor_.kill_and_wait();
    throw;
  }
}

RankGroup::~RankGroup() {
  if (watchdog_ == nullptr) return;
  for (const auto& rank : ranks_) watchdog_->forget(rank->pid);
}

GroupEnd RankGroup::run() {
  supervisor_.run();
  return summarize();
}

void RankGroup::handle(const signalfd_siginfo& info) {
  const auto signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) return;
  // A rank in our own process group gets the terminal's signals directly.
  if (watchdog_ != nullptr || info.ssi_code != SI_KERNEL) {
    supervisor_.send_to_all(signal);
  }
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
    received_ = signal;
    supervisor_.expect_end();
  }
}

void RankGroup::stop() {
  on_stop_.close();
  was_stopped_ = true;
  supervisor_.terminate();
}

GroupEnd RankGroup::summarize() const {
  GroupEnd end;
  end.was_stopped = was_stopped_;
  if (received_ != 0) {
    end.code = 128 + received_;
    end.was_signalled = true;
    return end;
  }
  std::vector<detail::Suspect> suspects;
  for (const std::size_t failed : supervisor_.failures()) {
    const int wait_status = supervisor_.ranks()[failed].wait_status;
    suspects.push_back(
        {failed,
         detail::is_surely_the_cause(wait_status),
         ranks_[failed]->last_words.blames_others()});
  }
  const std::optional<std::size_t> cause = detail::find_cause(suspects);
  if (!cause) return end;
  end.code = detail::exit_code_of(supervisor_.ranks()[*cause].wait_status);
  end.reason = describe(*cause);
  return end;
}

std::string RankGroup::describe(std::size_t cause) const {
  using detail::format;
  const int wait_status = supervisor_.ranks()[cause].wait_status;
  const RankProcess& rank = *ranks_[cause];
  if (watchdog_ == nullptr) {
    // A program that exits with a code has reported its own error.
    if (!WIFSIGNALED(wait_status)) return {};
    return format(
        "accelerate-cpp: the program {}\n", detail::describe_exit(wait_status));
  }
  std::string text = format(
      "accelerate-cpp: rank {} (process {}) {}{}",
      rank.rank,
      rank.pid,
      detail::describe_exit(wait_status),
      ranks_.size() > 1 ? "; the others were ended\n" : "\n");
  if (rank.last_words.lines().empty()) return text;
  text += "accelerate-cpp: its last words:\n";
  for (const std::string& line : rank.last_words.lines()) {
    text += "    " + line + "\n";
  }
  return text;
}

}  // namespace accelerate::cli
