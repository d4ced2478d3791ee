#pragma once

#include <deque>
#include <string>

#include <sys/types.h>

#include "cli/launch_plan.h"
#include "cli/line_prefixer.h"

namespace accelerate::cli {

/// One of the two output streams of a rank, on its way to ours.
struct RankStream {
  int pipe = -1;
  int target = -1;
  LinePrefixer prefixer{""};
};

/// One started rank.
struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  RankStream out;
  RankStream err;
  /// Last lines of its standard error.
  std::deque<std::string> last_words;
  std::string unfinished_word;
  /// Some line of its standard error speaks of a lost peer: then it is a
  /// victim and not the cause.
  bool blames_others = false;
  bool is_running = true;
  int wait_status = 0;

  /// Moves what has arrived on `stream`; closes it at its end.
  void pump(RankStream& stream);
  [[nodiscard]] bool is_silent() const { return out.pipe < 0 && err.pipe < 0; }

 private:
  void remember(std::string_view piece);
};

struct StartOptions {
  /// Pipes and a process group of its own; else it shares the launcher's.
  bool is_isolated = true;
};

/// Starts one rank. Throws ConfigError if the system refuses, with its reason.
RankProcess
start_rank(const LaunchPlan& plan, int rank, const StartOptions& options);

}  // namespace accelerate::cli
