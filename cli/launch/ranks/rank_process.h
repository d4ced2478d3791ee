#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <sys/types.h>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/ranks/rank_output.h"

namespace accelerate::cli {

/// One started rank. Not movable, since `err` points to `last_output`.
struct RankProcess {
  RankProcess() = default;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank = 0;
  /// The local rank in the group's first generation: its page on the board.
  int seat = 0;
  pid_t pid = -1;
  LastOutput last_output;
  RankStream out;
  RankStream err;
};

struct StartOptions {
  /// The rank gets its own pipes and process group; otherwise it shares the
  /// launcher's.
  bool is_isolated = true;
  /// Number of the attempt, from 0.
  int attempt = 0;
  StorePlace store;
  /// The ticket of the ranks' board; empty if there is none.
  std::string board;
  /// The generation of an elastic group in which it begins.
  std::uint32_t first_generation = 1;
  /// See rank_variables().
  std::optional<RankPlace> place = std::nullopt;
};

/// Starts one rank. Throws ConfigError if the system refuses, with its reason.
std::unique_ptr<RankProcess>
start_rank(const LaunchPlan& plan, int local_rank, const StartOptions& options);

}  // namespace accelerate::cli
