#include "launch/board/hang_detector.h"

#include <algorithm>
#include <string_view>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;

bool is_running(const ObservedRank& rank) {
  return rank.activity.state == BoardPageState::running &&
      !rank.activity.wait_status;
}

// A stopped process does not wait for anything, whatever its page says.
bool is_stopped(const ObservedRank& rank) {
  return rank.process_state == 'T' || rank.process_state == 't';
}

std::string seconds(milliseconds time) {
  return format("{} s", time.count() / 1000);
}

std::string_view describe_process_state(char process_state) {
  switch (process_state) {
    case 'T':
    case 't':
      return "its process is stopped (SIGSTOP, or a debugger)";
    case 'R':
      return "its process computes";
    case 'S':
      return "its process sleeps";
    case 'D':
      return "its process waits for a disk or another device";
    case 'Z':
      return "its process has ended";
    default:
      return {};
  }
}

std::string describe(const BlockingRank& rank) {
  // The process may still be loading its program.
  if (rank.process == 0) return format("rank {} has not joined yet", rank.rank);
  std::string text = format(
      "rank {} (process {}): {} for {}, step {}",
      rank.rank,
      rank.process,
      describe(rank.phase),
      seconds(rank.time),
      rank.step);
  text += rank.last_call.empty() ? "; no collective yet"
                                 : "; its last call: " + rank.last_call;
  const std::string_view state = describe_process_state(rank.process_state);
  if (!state.empty()) text += format("; {}", state);
  return text;
}

std::string headline(const HangReport& report) {
  std::vector<int> waiting, blocking;
  milliseconds time{};
  for (const WaitingRank& rank : report.waiting) {
    waiting.push_back(rank.rank);
    time = std::max(time, rank.time);
  }
  for (const BlockingRank& rank : report.blocking)
    blocking.push_back(rank.rank);
  const char* const waits = waiting.size() == 1 ? "has waited" : "have waited";
  switch (report.kind) {
    case HangReport::Kind::disagreement:
      return "the ranks of a group made different calls";
    case HangReport::Kind::cycle:
      return format("{} wait for each other", describe_ranks(waiting));
    case HangReport::Kind::elsewhere:
      return format(
          "{} {} {}, but not for a rank of this machine",
          describe_ranks(waiting),
          waits,
          seconds(time));
    case HangReport::Kind::late:
      break;
  }
  return format(
      "{} {} {} for {}",
      describe_ranks(waiting),
      waits,
      seconds(time),
      describe_ranks(blocking));
}

}  // namespace

milliseconds HangDetector::time_of(
    const Key& key,
    std::uint64_t value,
    Clock::time_point now) {
  Seen& seen = seen_.try_emplace(key, Seen{value, now}).first->second;
  if (seen.value != value) seen = {value, now};
  return std::chrono::duration_cast<milliseconds>(now - seen.since);
}

milliseconds HangDetector::time_in_phase(int rank, Clock::time_point now)
    const {
  const auto seen = seen_.find({rank, "phase"});
  if (seen == seen_.end()) return {};
  return std::chrono::duration_cast<milliseconds>(now - seen->second.since);
}

std::vector<HangDetector::Wait> HangDetector::note_waits(
    std::span<const ObservedRank> ranks,
    Clock::time_point now) {
  std::vector<Wait> waits;
  for (const ObservedRank& rank : ranks) {
    const RankActivity& activity = rank.activity;
    time_of({activity.rank, "phase"}, activity.num_phases, now);
    if (!is_running(rank)) continue;
    for (const GroupCall& call : activity.calls) {
      // Twice the number, so that a call that has ended is a different state.
      const milliseconds time = time_of(
          {activity.rank, call.group},
          2 * call.number + (call.has_ended ? 1 : 0),
          now);
      if (!call.has_ended && !is_stopped(rank))
        waits.push_back({&rank, &call, nullptr, time});
    }
    for (std::size_t i = 0; i < activity.waits.size(); ++i) {
      const PeerWait& wait = activity.waits[i];
      const milliseconds time = time_of(
          {activity.rank, format("wait {} {}", i, wait.what)},
          wait.number,
          now);
      if (!is_stopped(rank)) waits.push_back({&rank, nullptr, &wait, time});
    }
  }
  return waits;
}

std::optional<HangReport> HangDetector::find_disagreement(
    std::span<const ObservedRank> ranks) const {
  for (const ObservedRank& first : ranks) {
    for (const GroupCall& call : first.activity.calls) {
      if (call.has_ended || !is_running(first)) continue;
      std::vector<std::pair<int, GroupCall>> calls;
      bool all_agree = true;
      for (const ObservedRank& other : ranks) {
        const GroupCall* const theirs = find_call(other.activity, call.group);
        if (theirs == nullptr || theirs->number != call.number ||
            theirs->has_ended)
          continue;
        all_agree = all_agree && theirs->agrees_with(call);
        calls.emplace_back(other.activity.rank, *theirs);
      }
      if (all_agree) continue;
      HangReport report;
      report.kind = HangReport::Kind::disagreement;
      report.calls = std::move(calls);
      return report;
    }
  }
  return std::nullopt;
}

BlockingRank HangDetector::describe_blocking(
    const ObservedRank& rank,
    std::span<const Wait> waits,
    Clock::time_point now) const {
  const RankActivity& activity = rank.activity;
  BlockingRank blocking;
  blocking.rank = activity.rank;
  blocking.process = activity.process;
  blocking.phase = activity.phase;
  blocking.step = activity.num_steps;
  blocking.process_state = rank.process_state;
  blocking.time = time_in_phase(activity.rank, now);
  const GroupCall* newest = nullptr;
  for (const Wait& wait : waits) {
    if (wait.call != nullptr && newest == nullptr)
      newest = find_call(activity, wait.call->group);
  }
  if (newest == nullptr && !activity.calls.empty())
    newest = &activity.calls.front();
  if (newest != nullptr && newest->number > 0)
    blocking.last_call = describe(*newest);
  return blocking;
}

std::set<int> HangDetector::awaited_by(
    const Wait& wait,
    std::span<const ObservedRank> ranks) {
  if (wait.peers != nullptr)
    return {wait.peers->peers.begin(), wait.peers->peers.end()};
  std::set<int> missing;
  for (const ObservedRank& other : ranks) {
    const GroupCall* const theirs = find_call(other.activity, wait.call->group);
    // A rank that is stopped inside the call has not arrived either.
    if (theirs != nullptr &&
        (theirs->number < wait.call->number ||
         (is_stopped(other) && !theirs->has_ended)))
      missing.insert(other.activity.rank);
  }
  return missing;
}

std::vector<HangDetector::Wait> HangDetector::find_involved(
    std::span<const ObservedRank> ranks,
    std::span<const Wait> waits) const {
  const auto is_same_call = [](const Wait& a, const Wait& b) {
    if (a.call != nullptr && b.call != nullptr)
      return a.call->group == b.call->group;
    return a.peers != nullptr && b.peers != nullptr &&
        a.peers->what == b.peers->what;
  };
  std::vector<bool> is_involved(waits.size());
  std::vector<std::size_t> to_follow;
  const auto involve = [&](std::size_t i) {
    if (is_involved[i]) return;
    is_involved[i] = true;
    to_follow.push_back(i);
  };
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].time >= threshold_) involve(i);
  }
  while (!to_follow.empty()) {
    const Wait& wait = waits[to_follow.back()];
    to_follow.pop_back();
    const std::set<int> missing = awaited_by(wait, ranks);
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (missing.contains(waits[i].rank->activity.rank) ||
          is_same_call(wait, waits[i]))
        involve(i);
    }
  }
  std::vector<Wait> involved;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (is_involved[i]) involved.push_back(waits[i]);
  }
  return involved;
}

HangReport HangDetector::explain(
    std::span<const ObservedRank> ranks,
    std::span<const Wait> waits,
    Clock::time_point now) const {
  HangReport report;
  std::set<int> waiting, missing;
  bool awaits_others = false;
  for (const Wait& wait : waits) {
    const RankActivity& activity = wait.rank->activity;
    waiting.insert(activity.rank);
    report.waiting.push_back(
        {activity.rank,
         wait.call != nullptr ? describe(*wait.call) : wait.peers->what,
         wait.time});
    missing.merge(awaited_by(wait, ranks));
  }
  for (const ObservedRank& rank : ranks) {
    const int number = rank.activity.rank;
    awaits_others = awaits_others || missing.contains(number);
    if (!missing.contains(number) || waiting.contains(number)) continue;
    report.blocking.push_back(describe_blocking(rank, waits, now));
  }
  const bool awaits_elsewhere = std::ranges::any_of(
      missing, [&](int rank) { return !waiting.contains(rank); });
  report.kind = !report.blocking.empty()   ? HangReport::Kind::late
      : awaits_others && !awaits_elsewhere ? HangReport::Kind::cycle
                                           : HangReport::Kind::elsewhere;
  return report;
}

bool HangDetector::is_new(const HangReport& report) {
  std::string what = std::to_string(static_cast<int>(report.kind));
  for (const auto& [rank, call] : report.calls)
    what += format(" {}:{}", rank, call.number);
  for (const BlockingRank& rank : report.blocking) {
    what += format(
        " {}:{}",
        rank.rank,
        seen_.contains({rank.rank, "phase"})
            ? seen_.at({rank.rank, "phase"}).value
            : 0);
  }
  if (report.blocking.empty()) {
    for (const WaitingRank& rank : report.waiting)
      what += format(" {} {}", rank.rank, rank.in);
  }
  if (what == reported_) return false;
  reported_ = std::move(what);
  return true;
}

std::optional<HangReport> HangDetector::look(
    std::span<const ObservedRank> ranks,
    Clock::time_point now) {
  const std::vector<Wait> waits = note_waits(ranks, now);
  if (auto report = find_disagreement(ranks)) {
    if (is_new(*report)) return report;
    return std::nullopt;
  }
  const std::vector<Wait> involved = find_involved(ranks, waits);
  if (involved.empty()) {
    reported_.clear();
    return std::nullopt;
  }
  HangReport report = explain(ranks, involved, now);
  // A call that all ranks have entered, or a cycle, may still resolve itself.
  const bool may_resolve = report.kind != HangReport::Kind::late &&
      std::ranges::any_of(involved, [&](const Wait& wait) {
                             return wait.time < threshold_;
                           });
  if (may_resolve || !is_new(report)) return std::nullopt;
  return report;
}

std::string describe(const HangReport& report, const std::string& prefix) {
  std::string text = format("{}{}\n", prefix, headline(report));
  for (const auto& [rank, call] : report.calls)
    text += format("    rank {}: {}\n", rank, describe(call));
  for (const BlockingRank& rank : report.blocking)
    text += format("    {}\n", describe(rank));
  for (const WaitingRank& rank : report.waiting) {
    text += format(
        "    rank {} waits in {} ({})\n",
        rank.rank,
        rank.in,
        seconds(rank.time));
  }
  return text;
}

}  // namespace accelerate::detail
