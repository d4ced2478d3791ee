#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <sys/types.h>

#include <accelerate/error.h>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/ranks/rank_output.h"
#include "launch/processes/supervisor.h"

namespace accelerate::cli {

/// Reports why a rank's program could not be started.
class StartReport final : public detail::EventSource {
 public:
  StartReport() = default;
  StartReport(const StartReport&) = delete;
  StartReport& operator=(const StartReport&) = delete;
  ~StartReport() override { close(); }

  /// Takes ownership of BegunProcess's report.
  void listen(int pipe) { pipe_ = pipe; }
  [[nodiscard]] int descriptor() const override { return pipe_; }
  void read() override;
  /// An error number; 0 if the program runs, or might yet.
  [[nodiscard]] int problem() const { return problem_; }

 private:
  void close();

  int pipe_ = -1;
  int problem_ = 0;
};

/// One started rank. Not movable, since `err` points to `last_output`.
struct RankProcess {
  RankProcess() = default;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank = 0;
  /// The local rank in the group's first generation: its page on the board.
  int seat = 0;
  /// The generation of an elastic group in which it begins.
  std::uint32_t first_generation = 1;
  pid_t pid = -1;
  LastOutput last_output;
  /// How it ended, once it has; for messages.
  std::string ending;
  /// Set before it is killed for not having left a generation.
  bool is_late = false;
  RankStream out;
  RankStream err;
  StartReport start;
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

/// The error of a program that could not be started.
ConfigError start_error(const LaunchPlan& plan, int problem);

/// Starts one rank, whose streams go to `output`. Throws ConfigError if the
/// system has no process for it; RankProcess::start reports whether the program
/// runs.
std::unique_ptr<RankProcess> start_rank(
    const LaunchPlan& plan,
    int local_rank,
    const StartOptions& options,
    LaunchOutput& output);

}  // namespace accelerate::cli
