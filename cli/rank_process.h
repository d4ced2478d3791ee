#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "cli/launch_plan.h"
#include "cli/rank_output.h"

namespace accelerate::cli {

/// One started rank.
struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  RankStream out;
  RankStream err;
  LastWords last_words;
  bool is_running = true;
  int wait_status = 0;

  /// Moves what has arrived on `stream`, one of the two.
  void pump(RankStream& stream);
  [[nodiscard]] bool is_silent() const {
    return !out.is_open() && !err.is_open();
  }
};

struct StartOptions {
  /// Pipes and a process group of its own; else it shares the launcher's.
  bool is_isolated = true;
  /// Which start of the group this is, from 0.
  int attempt = 0;
  /// Of the store.
  int port = 0;
};

/// Starts one rank. Throws ConfigError if the system refuses, with its reason.
RankProcess
start_rank(const LaunchPlan& plan, int local_rank, const StartOptions& options);

}  // namespace accelerate::cli
