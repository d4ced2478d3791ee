#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cli/launch/launch_plan.h"
#include "cli/launch/signals.h"
#include "cli/store/store_client.h"

namespace accelerate::cli {

/// What the launchers of several machines tell each other, in the store of
/// machine 0: when an attempt begins, and how it ended. All begin together, and
/// a failure anywhere, also of a launcher or of the way to it, ends the attempt
/// everywhere.
class Machines {
 public:
  /// Waits until the store answers. Throws DistributedError and Stopped.
  Machines(const LaunchPlan& plan, int port, const Signals& signals);
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  ~Machines();

  /// Waits for all machines, and begins to listen for the attempt's end.
  /// Returns a descriptor that becomes readable when ranks elsewhere failed, or
  /// another machine is gone. Throws DistributedError if a machine does not
  /// come, and Stopped.
  int begin(int attempt);

  /// Ranks here ended with this exit code. Waits until those of all machines
  /// have, or one failed. Returns the exit code for all, and what failed
  /// elsewhere in `reason`. Throws Stopped.
  struct End {
    int code = 0;
    std::string reason;
  };
  End finish(int attempt, int code);

 private:
  using Clock = std::chrono::steady_clock;

  std::string wait_for(
      const std::string& key,
      Clock::duration patience,
      const std::string& what);
  void listen(int attempt);
  void stop_listening();

  int machine_;
  int num_machines_;
  std::string address_;
  int port_;
  const Signals& signals_;
  StoreClient client_;
  std::thread thread_;
  std::atomic<bool> listens_{false};
  int stop_ = -1;
};

}  // namespace accelerate::cli
