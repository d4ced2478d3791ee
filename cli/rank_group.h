#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch_plan.h"
#include "cli/rank_process.h"
#include "cli/signals.h"
#include "cli/watchdog.h"

namespace accelerate::cli {

/// How all ranks of this machine ended.
struct GroupEnd {
  /// 0, that of the rank that failed first, or 128 and a signal we got.
  int code = 0;
  /// Somebody told the launcher to end.
  bool was_told = false;
  /// It was ended since ranks elsewhere failed.
  bool was_stopped = false;
  /// What failed, in lines; nothing if it need not be said.
  std::string reason;
};

/// The ranks of one attempt on this machine.
class RankGroup {
 public:
  struct Options {
    int attempt = 0;
    int port = 0;
    /// A descriptor that becomes readable when ranks elsewhere failed; or -1.
    int stop = -1;
  };

  /// Starts them. Throws ConfigError if one cannot be started; then none runs.
  /// `watchdog` may be null: then the rank shares the launcher's output.
  RankGroup(
      const LaunchPlan& plan,
      const Options& options,
      const Signals& signals,
      Watchdog* watchdog);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  ~RankGroup();

  /// Passes output and signals on until all have ended; ends the others when
  /// one fails.
  GroupEnd run();

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool all_dead() const;
  [[nodiscard]] bool is_over() const;
  void wait_for_something();
  [[nodiscard]] int milliseconds_to_next_deadline() const;
  void heed(const signalfd_siginfo& info);
  void collect_dead();
  void note_failure(RankProcess& rank);
  void terminate();
  void keep_deadlines();
  void send_to_all(int signal);
  GroupEnd summarize() const;
  [[nodiscard]] std::string describe(const RankProcess& cause) const;

  const LaunchPlan& plan_;
  Options options_;
  const Signals& signals_;
  Watchdog* watchdog_;
  std::vector<RankProcess> ranks_;
  std::vector<RankProcess*> candidates_;
  RankProcess* cause_ = nullptr;
  int received_ = 0;
  bool was_terminated_ = false;
  bool was_stopped_ = false;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> drain_until_;
};

}  // namespace accelerate::cli
