#include "launch/board/hang_monitor.h"

#include <signal.h>

#include <set>
#include <span>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "launch/board/process_state.h"

namespace accelerate::detail {

namespace {

struct NamedProcess {
  int rank = 0;
  int page = 0;
  pid_t process = 0;
};

// The processes whose stacks explain a report: those that hold up the others,
// or all that wait if there are none.
std::vector<NamedProcess> processes_of(
    const HangReport& report,
    std::span<const ObservedRank> ranks) {
  std::set<int> wanted;
  for (const BlockingRank& rank : report.blocking) wanted.insert(rank.rank);
  if (wanted.empty()) {
    for (const WaitingRank& rank : report.waiting) wanted.insert(rank.rank);
    for (const auto& [rank, call] : report.calls) wanted.insert(rank);
  }
  std::vector<NamedProcess> processes;
  for (const ObservedRank& rank : ranks) {
    if (wanted.contains(rank.activity.rank) && rank.activity.process != 0)
      processes.push_back(
          {rank.activity.rank, rank.activity.index, rank.activity.process});
  }
  return processes;
}

}  // namespace

OnHang parse_on_hang(std::string_view text) {
  if (text == "warn") return OnHang::warn;
  if (text == "stacks") return OnHang::stacks;
  if (text == "kill") return OnHang::kill;
  throw ConfigError(format(
      "[launch] on_hang must be warn, stacks or kill, but is \"{}\"", text));
}

HangMonitor::HangMonitor(const Board& board, HangMonitorOptions options)
    : board_(board),
      options_(std::move(options)),
      detector_(options_.threshold) {}

HangMonitor::~HangMonitor() {
  retire();
  if (stacks_.joinable()) stacks_.join();
}

void HangMonitor::read_settings() {
  for (int i = 0; i < board_.num_pages(); ++i) {
    const BoardPage& page = board_.page(i);
    if (const std::uint64_t given = page.hang_threshold.load())
      options_.threshold = std::chrono::milliseconds(given - 1);
    const std::uint32_t on_hang = page.on_hang.load();
    if (on_hang > 0 && on_hang <= 3)
      options_.on_hang = static_cast<OnHang>(on_hang - 1);
  }
  detector_.set_threshold(options_.threshold);
}

void HangMonitor::say(const std::string& text) {
  const std::lock_guard lock(saying_);
  options_.say(text);
  board_.add_report(text);
}

void HangMonitor::look() {
  read_settings();
  if (options_.threshold.count() == 0) return;
  std::vector<ObservedRank> ranks;
  for (RankActivity& activity : read_activities(board_)) {
    const char state = process_state(activity.process);
    ranks.push_back({std::move(activity), state});
  }
  const auto now = HangDetector::Clock::now();
  std::vector<RankActivity> activities;
  for (const ObservedRank& rank : ranks) activities.push_back(rank.activity);
  if (const auto slow = stragglers_.look(activities, now)) say(describe(*slow));
  const auto report = detector_.look(ranks, now);
  if (!report) return;
  say(describe(*report, ""));
  if (options_.on_hang == OnHang::warn || takes_stacks_) return;
  if (stacks_.joinable()) stacks_.join();
  takes_stacks_ = true;
  stacks_ =
      std::thread([this,
                   kills = options_.on_hang == OnHang::kill &&
                       // Ranks that wait for another machine are not the cause.
                       report->kind != HangReport::Kind::elsewhere,
                   processes = processes_of(*report, ranks)] {
        const StackTaker taker(options_.path);
        std::vector<NamedStacks> stacks;
        for (const NamedProcess& each : processes) {
          if (is_retired_.load()) break;
          stacks.push_back(
              {format("rank {}", each.rank), taker.take(each.process)});
        }
        if (!stacks.empty()) say(describe(stacks));
        for (const NamedProcess& each : processes) {
          if (!kills || is_retired_.load()) break;
          say(format(
              "rank {} (process {}) is ended, because it holds up the others "
              "(--on_hang kill)\n",
              each.rank,
              each.process));
          board_.page(each.page).killed_for_hang.store(each.process);
          ::kill(each.process, SIGKILL);
        }
        takes_stacks_ = false;
      });
}

}  // namespace accelerate::detail
