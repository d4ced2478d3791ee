#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/signals.h"
#include "launch/watchdog.h"
#include "launch/supervisor.h"

namespace accelerate::cli {

/// How all ranks of this machine ended.
struct GroupEnd {
  /// 0, that of the rank that failed first, or 128 and a signal we got.
  int code = 0;
  /// The launcher received a signal to end.
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
      detail::Watchdog* watchdog);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  ~RankGroup();

  /// Passes output and signals on until all have ended; ends the others when
  /// one fails.
  GroupEnd run();

 private:
  /// A descriptor, and what to do when it is readable.
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

  void heed(const signalfd_siginfo& info);
  void stop();
  GroupEnd summarize() const;
  [[nodiscard]] std::string describe(std::size_t cause) const;

  const LaunchPlan& plan_;
  const Signals& signals_;
  detail::Watchdog* watchdog_;
  Event on_signal_;
  Event on_stop_;
  detail::Supervisor supervisor_;
  /// In the supervisor's order.
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  int received_ = 0;
  bool was_stopped_ = false;
};

}  // namespace accelerate::cli
