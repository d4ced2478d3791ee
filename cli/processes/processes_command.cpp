#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "cli/runs/text_table.h"
#include "cli/tool/commands.h"
#include "config/environment.h"
#include "launch/board/board.h"
#include "launch/board/process_state.h"
#include "launch/board/rank_activity.h"
#include "launch/stacks/thread_stacks.h"

namespace accelerate::cli {

namespace {

// A group of ranks running on this machine.
struct RunningGroup {
  /// The process that made its board: its launcher, or its first rank.
  pid_t process = 0;
  detail::Board board;
};

bool has_rank(const RunningGroup& group, pid_t process) {
  const auto ranks = detail::read_activities(group.board);
  return std::ranges::any_of(ranks, [&](const detail::RankActivity& rank) {
    return rank.process == process;
  });
}

// All groups whose processes this process may inspect, in the order of their
// processes. Nothing is registered anywhere: a process that has a board keeps
// its file open.
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
  std::ranges::sort(processes);
  std::vector<RunningGroup> groups;
  for (const pid_t process : processes) {
    for (detail::Board& board : detail::Board::of_process(process))
      groups.push_back({process, std::move(board)});
  }
  return groups;
}

// The group of process `number`, which may be its launcher or a rank. Throws
// ConfigError listing the existing groups if there is none.
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

using detail::format;
using detail::RankActivity;

struct PsFlags {
  double seconds = 0.5;
};

struct StacksFlags {
  int process = 0;
};

struct ResizeFlags {
  int process = 0;
  int num_ranks = 0;
};

// Steps per second between two samples.
std::string rate(
    const std::vector<RankActivity>& before,
    const RankActivity& now,
    double s) {
  double steps = 0;
  for (const RankActivity& each : before) {
    // Another process may have the seat now.
    if (each.index == now.index && each.process == now.process &&
        each.num_steps < now.num_steps)
      steps = static_cast<double>(now.num_steps - each.num_steps);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", steps / s);
  return text;
}

std::string phase_of(const RankActivity& rank) {
  if (rank.wait_status) return rank.ending;
  switch (rank.state) {
    case detail::BoardPageState::empty:
      return "has not joined yet";
    case detail::BoardPageState::finished:
      return "finished";
    case detail::BoardPageState::failed:
      return "failed";
    case detail::BoardPageState::running:
      break;
  }
  const char state = detail::process_state(rank.process);
  if (state == 'T' || state == 't') return "stopped";
  return detail::describe(rank.phase);
}

std::string call_of(const RankActivity& rank) {
  for (const detail::PeerWait& wait : rank.waits)
    return format("waits in {}", wait.what);
  for (const detail::GroupCall& call : rank.calls) {
    if (!call.has_ended) return detail::describe(call);
  }
  return {};
}

void print_group(
    const RunningGroup& group,
    const std::vector<RankActivity>& before,
    double seconds) {
  const detail::BoardHeader& header = group.board.header();
  // Groups that change their size have generations.
  const int num_ranks = header.generation.load() > 0 ? header.num_ranks.load()
                                                     : header.world_size;
  std::printf(
      "process %d: %s\n",
      group.process,
      detail::printable(detail::text_of(header.command)).c_str());
  std::printf(
      "  %d ranks%s%s%s\n",
      num_ranks,
      num_ranks > header.num_pages
          ? format(
                ", {} of them on this machine, which is machine {}",
                header.num_pages,
                header.machine)
                .c_str()
          : "",
      header.attempt > 0
          ? format(", started again {} times", header.attempt).c_str()
          : "",
      header.generation.load() > 1
          ? format(", generation {}", header.generation.load()).c_str()
          : "");
  TextTable table(
      {"rank", "process", "step", "steps/s", "memory", "phase", "call"});
  for (const RankActivity& rank : detail::read_activities(group.board)) {
    table.add(
        {std::to_string(rank.rank),
         std::to_string(rank.process),
         std::to_string(rank.num_steps),
         rate(before, rank, seconds),
         detail::format_size(
             static_cast<double>(detail::resident_bytes(rank.process))),
         phase_of(rank),
         call_of(rank)});
  }
  std::fputs(table.text("  ").c_str(), stdout);
}

int list_groups(const PsFlags& flags) {
  const std::vector<RunningGroup> groups = find_groups();
  if (groups.empty()) {
    std::puts("nothing runs here that this user may see");
    return 0;
  }
  std::vector<std::vector<RankActivity>> before;
  for (const RunningGroup& group : groups)
    before.push_back(detail::read_activities(group.board));
  std::this_thread::sleep_for(std::chrono::duration<double>(flags.seconds));
  for (std::size_t i = 0; i < groups.size(); ++i)
    print_group(groups[i], before[i], flags.seconds);
  return 0;
}

int print_stacks(const StacksFlags& flags) {
  const RunningGroup group = find_group(flags.process);
  const detail::StackTaker taker(
      detail::Environment::current().get("PATH").value_or(""));
  std::vector<detail::NamedStacks> stacks;
  bool has_stacks = false;
  for (const RankActivity& rank : detail::read_activities(group.board)) {
    if (rank.process == 0 || detail::has_ended(rank.process)) continue;
    stacks.push_back(
        {format("rank {} ({})", rank.rank, detail::describe(rank.phase)),
         taker.take(rank.process)});
    has_stacks = has_stacks || stacks.back().stacks.problem.empty();
  }
  std::fputs(detail::describe(stacks).c_str(), stdout);
  return has_stacks ? 0 : 1;
}

// Asks the launcher, which checks several times per second.
int ask_for_size(const ResizeFlags& flags) {
  const RunningGroup group = find_group(flags.process);
  detail::BoardHeader& header = group.board.shared_header();
  const int fewest = header.fewest_ranks.load();
  const int most = header.most_ranks.load();
  if (header.generation.load() == 0 || fewest == most) {
    throw ConfigError(format(
        "[launch] the group of process {} does not change its size; start it "
        "with accelerate-cpp launch --num_processes MIN:MAX",
        flags.process));
  }
  if (most > header.num_pages) {
    throw ConfigError(format(
        "[launch] the group of process {} is on several machines, and its size "
        "changes with them: start a launcher on another machine, or end one "
        "with SIGTERM",
        flags.process));
  }
  if (flags.num_ranks < fewest || flags.num_ranks > most) {
    throw ConfigError(format(
        "[launch] the group of process {} cannot have {} ranks: it was "
        "started for {} to {}",
        flags.process,
        flags.num_ranks,
        fewest,
        most));
  }
  header.asked_ranks.store(flags.num_ranks);
  std::printf(
      "asked the launcher for %d ranks instead of %d\n",
      flags.num_ranks,
      header.num_ranks.load());
  return 0;
}

}  // namespace

RunCommand add_ps_command(CLI::App& tool) {
  CLI::App* const command = tool.add_subcommand(
      "ps", "list the groups of ranks that run on this machine");
  auto flags = std::make_shared<PsFlags>();
  command
      ->add_option(
          "--seconds",
          flags->seconds,
          "how long steps are counted for the rate")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  return [flags] { return list_groups(*flags); };
}

RunCommand add_stacks_command(CLI::App& tool) {
  CLI::App* const command = tool.add_subcommand(
      "stacks",
      "print where the threads of all ranks of a group are; equal stacks once");
  auto flags = std::make_shared<StacksFlags>();
  command
      ->add_option(
          "process",
          flags->process,
          "number of the launcher's process, or of a rank's; see ps")
      ->required();
  return [flags] { return print_stacks(*flags); };
}

RunCommand add_resize_command(CLI::App& tool) {
  CLI::App* const command = tool.add_subcommand(
      "resize",
      "let a group that was started with --num_processes MIN:MAX continue with "
      "another number of ranks, from the end of a step on");
  auto flags = std::make_shared<ResizeFlags>();
  command
      ->add_option(
          "process",
          flags->process,
          "number of the launcher's process, or of a rank's; see ps")
      ->required();
  command->add_option("ranks", flags->num_ranks, "how many ranks")->required();
  return [flags] { return ask_for_size(*flags); };
}

}  // namespace accelerate::cli
