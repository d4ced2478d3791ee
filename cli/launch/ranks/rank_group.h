#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/nodes/elastic_member.h"
#include "cli/launch/output/launch_output.h"
#include "cli/launch/ranks/rank_process.h"
#include "cli/launch/signals.h"
#include "launch/board/board.h"
#include "launch/board/hang_monitor.h"
#include "launch/elastic/generations.h"
#include "launch/processes/supervisor.h"
#include "launch/processes/watchdog.h"

namespace accelerate::cli {

/// How the ranks of this machine ended.
struct GroupEnd {
  /// 0, the exit code of the rank that failed first, or 128 plus the signal
  /// that ended the launcher.
  int code = 0;
  /// True if the launcher received a terminating signal.
  bool was_signalled = false;
  /// True if the ranks were ended because ranks elsewhere failed.
  bool was_stopped = false;
  /// Lines that say what failed; empty if there is nothing to report.
  std::string reason;
};

/// The ranks of one attempt on this machine.
class RankGroup {
 public:
  struct Options {
    int attempt = 0;
    StorePlace store;
    /// A descriptor that becomes readable when ranks elsewhere fail; or -1.
    int stop = -1;
    /// Number of processes that may still be started to replace others.
    int* num_restarts_left = nullptr;
    /// Set for a group whose machines come and go, where machine 0 decides
    /// about ranks; otherwise null. Must outlive this object.
    ElasticMember* member = nullptr;
  };

  /// Starts the ranks. Throws ConfigError, and runs none, if one cannot be
  /// started. Without a `watchdog` (null), the rank shares the launcher's
  /// output.
  RankGroup(
      const LaunchPlan& plan,
      const Options& options,
      const Signals& signals,
      LaunchOutput& output,
      detail::Watchdog* watchdog);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  ~RankGroup();

  /// Forwards output and signals until all ranks have ended. Stops the others
  /// when one fails. Throws ConfigError if a program cannot be started.
  GroupEnd run();

 private:
  /// Calls a function when a descriptor is readable.
  class Event final : public detail::EventSource {
   public:
    Event(int descriptor, std::function<void()> on_ready)
        : descriptor_(descriptor), on_ready_(std::move(on_ready)) {}
    [[nodiscard]] int descriptor() const override { return descriptor_; }
    void read() override { on_ready_(); }
    void close() { descriptor_ = -1; }

   private:
    int descriptor_;
    std::function<void()> on_ready_;
  };

  void handle(const signalfd_siginfo& info);
  void say(const std::string& text) const { output_.say(text); }
  void stop();
  void start_board();
  void start_monitor();
  void retire_monitor();
  // Starts a process; throws ConfigError if that fails.
  void start(int seat, std::uint32_t first_generation);
  // Whether an elastic group continues in spite of this failure.
  bool make_good(std::size_t index);
  // Carries out machine 0's decisions for the ranks of this machine.
  void follow_orders();
  void start_ordered(int seat, std::uint32_t first_generation);
  // True once machine 0 has said how the group ends, or that it continues
  // without this machine.
  [[nodiscard]] bool has_group_ended() const;
  void end_with_group();
  // Asks the other machines to continue without this one; false if there are
  // none to ask.
  bool ask_to_leave();
  // Replaces, adds and drops ranks of an elastic group as is due.
  void keep_generations();
  void keep_sizes(detail::Generations& generations);
  // Writes on the board how a rank ended; reports the first failure.
  void note_end(std::size_t index);
  // How a rank has ended, with the reason if that was this launcher.
  [[nodiscard]] std::string describe_ending(std::size_t index) const;
  GroupEnd summarize() const;
  [[nodiscard]] std::string describe(std::size_t cause) const;

  const LaunchPlan& plan_;
  const Options options_;
  const Signals& signals_;
  LaunchOutput& output_;
  detail::Watchdog* watchdog_;
  Event on_signal_;
  Event on_stop_;
  detail::Supervisor supervisor_;
  /// The ranks in the supervisor's order.
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  /// Unset for programs that report nothing, or without shared memory.
  std::optional<detail::Board> board_;
  std::unique_ptr<detail::HangMonitor> hang_monitor_;
  // Monitors of earlier generations that are still taking stacks.
  std::vector<std::unique_ptr<detail::HangMonitor>> retired_monitors_;
  /// Unset for groups whose ranks cannot be replaced.
  std::optional<detail::Generations> generations_;
  /// The failure that last ended a generation.
  std::size_t made_good_ = 0;
  int received_ = 0;
  bool was_stopped_ = false;
  bool has_failed_ = false;
  bool asks_to_leave_ = false;
  /// Set if machine 0 has to make good a rank's failure.
  bool has_lost_ = false;
};

}  // namespace accelerate::cli
