#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/output/launch_output.h"
#include "cli/launch/signals.h"
#include "cli/store/store_client.h"

namespace accelerate::cli {

/// Coordinates the launchers of several machines through machine 0's store.
/// They begin each attempt together, and a failure anywhere, including that of
/// a launcher or its connection, ends the attempt everywhere. A launcher
/// started in place of one that is gone ends the attempt that lacks it, and
/// takes part from the next one on.
class Machines {
 public:
  /// Waits until the store answers, and joins. `store` has the secret only on
  /// machine 0. Throws DistributedError on a timeout, and if this launcher
  /// returns when no restart is left; ConfigError if machine 0 refuses; or
  /// Stopped.
  Machines(
      const LaunchPlan& plan,
      const StorePlace& store,
      const Signals& signals,
      const LaunchOutput& output);
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  ~Machines();

  /// The attempt with which this launcher begins; above 0 if it took another
  /// launcher's place.
  [[nodiscard]] int first_attempt() const { return first_attempt_; }
  [[nodiscard]] bool is_returning() const { return num_launchers_ > 1; }

  /// Waits for all machines, and starts listening for the attempt's end.
  /// Returns a descriptor that becomes readable when ranks elsewhere fail or
  /// another machine is gone. Throws DistributedError if a machine does not
  /// join, or Stopped.
  int begin(int attempt);
  /// The secret of the launch, chosen by machine 0.
  [[nodiscard]] const std::string& secret() const { return secret_; }

  /// The exit code for all machines, and what failed elsewhere.
  struct End {
    int code = 0;
    std::string reason;
  };
  /// Reports the exit code of the ranks here. Waits until the ranks of all
  /// machines have ended or one has failed. With `may_restart`, keeps the store
  /// after a failure. Throws Stopped.
  End finish(int attempt, int code, bool may_restart);
  /// Throws DistributedError if finish() found that machine 0, which keeps the
  /// store, is gone: nothing can be restarted then.
  void require_store() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::string wait_for(
      const std::string& key,
      Clock::duration patience,
      const std::string& what);
  void take_place(const LaunchPlan& plan);
  // Reports that this machine is ready for the attempt; returns how many are.
  std::int64_t arrive(int attempt);
  void listen(int attempt);
  void stop_listening();

  int machine_;
  int num_machines_;
  std::string address_;
  int port_;
  std::string secret_;
  const Signals& signals_;
  const LaunchOutput& output_;
  StoreClient client_;
  std::thread thread_;
  std::atomic<bool> listens_{false};
  int stop_ = -1;
  // Number of launchers that have had this place, including this one.
  std::int64_t num_launchers_ = 1;
  int first_attempt_ = 0;
  std::string store_loss_;
};

}  // namespace accelerate::cli
