#include "cli/processes/running_groups.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "launch/board/rank_activity.h"

namespace accelerate::cli {

namespace {

bool has_rank(const RunningGroup& group, pid_t process) {
  const auto ranks = detail::read_activities(group.board);
  return std::any_of(
      ranks.begin(), ranks.end(), [&](const detail::RankActivity& rank) {
        return rank.process == process;
      });
}

}  // namespace

std::vector<RunningGroup> find_groups() {
  namespace fs = std::filesystem;
  std::vector<pid_t> processes;
  std::error_code error;
  fs::directory_iterator entries("/proc", error);
  for (; !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const auto number = detail::parse_int(entries->path().filename().string());
    if (number) processes.push_back(static_cast<pid_t>(*number));
  }
  std::sort(processes.begin(), processes.end());
  std::vector<RunningGroup> groups;
  for (const pid_t process : processes) {
    for (detail::Board& board : detail::Board::of_process(process))
      groups.push_back({process, std::move(board)});
  }
  return groups;
}

RunningGroup find_group(pid_t number) {
  std::vector<RunningGroup> groups = find_groups();
  for (RunningGroup& group : groups) {
    if (group.process == number || has_rank(group, number))
      return std::move(group);
  }
  std::vector<std::string> known;
  for (const RunningGroup& group : groups)
    known.push_back(std::to_string(group.process));
  throw ConfigError(detail::format(
      "[launch] process {} is neither the launcher nor a rank of a running "
      "group; {}",
      number,
      known.empty() ? std::string("no group runs here that this user may see")
                    : "groups run under " + detail::join(known, ", ")));
}

}  // namespace accelerate::cli
