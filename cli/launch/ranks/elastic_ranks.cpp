// The part of RankGroup for ranks that may be replaced, leave and join.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/ranks/rank_group.h"

namespace accelerate::cli {

namespace {

// Polling interval while generations change.
constexpr std::chrono::milliseconds kWhileChanging{2};
// Polling interval until all ranks have called run_elastic(), which most
// programs do.
constexpr std::chrono::milliseconds kWhileStarting{20};

}  // namespace

bool RankGroup::make_good(std::size_t index) {
  if (options_.member != nullptr && !was_stopped_ && received_ == 0) {
    // Kills what it started, and makes the watchdog forget it, since another
    // process may get its id.
    ::kill(-ranks_[index]->pid, SIGKILL);
    watchdog_->forget(ranks_[index]->pid);
    if (!std::exchange(has_lost_, true)) made_good_ = index;
    supervisor_.set_interval(kWhileChanging);
    return true;
  }
  if (!generations_ || was_stopped_ || received_ != 0) return false;
  RankProcess& lost = *ranks_[index];
  const detail::Generations::Loss loss = generations_->lose(lost.seat);
  if (loss == detail::Generations::Loss::ends_group) return false;
  // Kills what it started, and makes the watchdog forget it, since another
  // process may get its id.
  ::kill(-lost.pid, SIGKILL);
  watchdog_->forget(lost.pid);
  made_good_ = index;
  std::string words = detail::format(
      "the others continue without process {}, which {}",
      lost.pid,
      lost.ending);
  if (loss == detail::Generations::Loss::replaced) {
    try {
      start(lost.seat, generations_->next());
    } catch (const ConfigError& error) {
      say(detail::format("accelerate-cpp: {}\n", error.what()));
      return false;
    }
    words = detail::format(
        "process {} takes the place of process {}; the others continue",
        ranks_.back()->pid,
        lost.pid);
  }
  if (!plan_.is_quiet) say(detail::format("accelerate-cpp: {}\n", words));
  keep_generations();
  return true;
}

void RankGroup::keep_sizes(detail::Generations& generations) {
  const int asked = generations.take_request();
  if (asked == 0) return;
  if (!plan_.is_quiet) {
    say(detail::format(
        "accelerate-cpp: going from {} ranks to {}\n",
        generations.num_ranks(),
        asked));
  }
  for (const int seat : generations.resize(asked)) {
    try {
      start(seat, generations.next());
    } catch (const ConfigError& error) {
      say(detail::format("accelerate-cpp: {}\n", error.what()));
      generations.finish(seat);
    }
  }
}

void RankGroup::start_ordered(int seat, std::uint32_t first_generation) {
  try {
    start(seat, first_generation);
  } catch (const ConfigError& error) {
    // Either all ranks of the first generation start, or none.
    if (first_generation == 1) throw;
    say(detail::format("accelerate-cpp: {}\n", error.what()));
    constexpr int kFailed = 1 << 8;
    options_.member->note_start(seat, 0);
    options_.member->note_end(seat, kFailed);
    return;
  }
  if (first_generation == 1 || plan_.is_quiet) return;
  say(detail::format(
      "accelerate-cpp: process {} {}; the others continue\n",
      ranks_.back()->pid,
      has_lost_ ? "takes the place of one that has ended" : "joins the group"));
}

void RankGroup::follow_orders() {
  ElasticMember& member = *options_.member;
  if (was_stopped_) return;
  const ElasticMember::Orders orders = member.exchange();
  if (has_group_ended()) return end_with_group();
  if (orders.has_begun) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (supervisor_.ranks()[i].is_running)
        ranks_[i]->rank = member.rank_of(ranks_[i]->seat);
    }
    has_failed_ = false;
    has_lost_ = false;
    retire_monitor();
    start_monitor();
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const bool is_late =
        std::ranges::find(orders.kills, ranks_[i]->seat) != orders.kills.end();
    if (!is_late || !supervisor_.ranks()[i].is_running) continue;
    ranks_[i]->is_late = true;
    ::kill(-ranks_[i]->pid, SIGKILL);
  }
  if (received_ == 0) {
    for (const auto& [seat, generation] : orders.starts)
      start_ordered(seat, generation);
  } else if (asks_to_leave_ && member.is_refused()) {
    asks_to_leave_ = false;
    say("accelerate-cpp: the other machines cannot continue without this "
        "one; all ranks are told to end\n");
    supervisor_.send_to_all(SIGTERM);
  }
  if (member.is_changing()) retire_monitor();
  std::erase_if(retired_monitors_, [](const auto& monitor) {
    return !monitor->is_busy();
  });
  supervisor_.set_interval(
      member.is_changing()       ? kWhileChanging
          : member.is_starting() ? kWhileStarting
                                 : detail::HangMonitor::kInterval);
}

bool RankGroup::has_group_ended() const {
  return options_.member->is_left_out() || options_.member->outcome();
}

void RankGroup::end_with_group() {
  const auto outcome = options_.member->outcome();
  const bool is_own = !outcome ||
      (outcome->code != 0 && outcome->machine == plan_.machine_rank);
  if (is_own && has_lost_) {
    on_stop_.close();
    supervisor_.give_up(made_good_);
    was_stopped_ = true;
  } else {
    stop();
  }
}

bool RankGroup::ask_to_leave() {
  // Machine 0 keeps the store.
  if (options_.member == nullptr || plan_.machine_rank == 0 || received_ != 0)
    return false;
  options_.member->ask_to_leave();
  asks_to_leave_ = true;
  supervisor_.set_interval(kWhileChanging);
  if (!plan_.is_quiet)
    say("accelerate-cpp: this machine leaves the group after the next step\n");
  return true;
}

void RankGroup::keep_generations() {
  if (received_ != 0 || was_stopped_) return;
  detail::Generations& generations = *generations_;
  keep_sizes(generations);
  if (generations.advance()) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (supervisor_.ranks()[i].is_running)
        ranks_[i]->rank = generations.rank_of(ranks_[i]->seat);
    }
    has_failed_ = false;
    start_monitor();
  } else if (generations.has_failed()) {
    supervisor_.give_up(made_good_);
  }
  if (generations.is_changing()) retire_monitor();
  std::erase_if(retired_monitors_, [](const auto& monitor) {
    return !monitor->is_busy();
  });
  supervisor_.set_interval(
      generations.is_changing() ? kWhileChanging
                                : detail::HangMonitor::kInterval);
}

}  // namespace accelerate::cli
