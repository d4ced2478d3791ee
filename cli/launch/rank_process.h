#pragma once

#include <memory>

#include <sys/types.h>

#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_output.h"

namespace accelerate::cli {

/// One started rank. It stays where it is: its streams tell its last words.
struct RankProcess {
  RankProcess() = default;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank = 0;
  pid_t pid = -1;
  LastWords last_words;
  RankStream out;
  RankStream err;
};

struct StartOptions {
  /// Pipes and a process group of its own; else it shares the launcher's.
  bool is_isolated = true;
  /// Which start of the group this is, from 0.
  int attempt = 0;
  /// Port of the store.
  int port = 0;
};

/// Starts one rank. Throws ConfigError if the system refuses, with its reason.
std::unique_ptr<RankProcess>
start_rank(const LaunchPlan& plan, int local_rank, const StartOptions& options);

}  // namespace accelerate::cli
