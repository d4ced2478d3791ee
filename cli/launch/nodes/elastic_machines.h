#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/nodes/elastic_member.h"
#include "cli/launch/output/launch_output.h"
#include "cli/launch/signals.h"
#include "cli/store/store_client.h"

namespace accelerate::cli {

/// Coordinates the launchers of several machines that come and go
/// (--num_processes MIN:MAX) through the store of machine 0, whose launcher
/// decides (ElasticKeeper) and cannot be replaced.
class ElasticMachines {
 public:
  /// Waits until the store answers, and joins. Throws as Machines does.
  ElasticMachines(
      const LaunchPlan& plan,
      const StorePlace& store,
      const Signals& signals,
      const LaunchOutput& output);
  ElasticMachines(const ElasticMachines&) = delete;
  ElasticMachines& operator=(const ElasticMachines&) = delete;
  ~ElasticMachines();

  /// The secret of the launch, chosen by machine 0.
  [[nodiscard]] const std::string& secret() const { return secret_; }

  /// Begins the next attempt; `num_restarts_left` is used on machine 0 only.
  /// Waits until this machine is admitted or the group ends, whichever comes
  /// first. Throws DistributedError on machine 0 if too few join, or Stopped.
  ElasticMember& begin(int num_restarts_left);
  /// The attempt that begin() started, which on a machine that joins is not
  /// always the next one.
  [[nodiscard]] int attempt() const { return attempt_; }
  /// Machine 0 waits a while for the group to end.
  void await_end() const;
  /// Ends the group for all on behalf of this machine, which was signalled,
  /// since machine 0 keeps the store.
  void end_for_all(int code);
  /// Returns once this machine's reports have arrived and, on machine 0 if
  /// `is_last`, once the others have left.
  void finish(bool is_last);

 private:
  using Clock = std::chrono::steady_clock;
  class Exchange;

  void start_exchange(int num_restarts_left);

  const LaunchPlan& plan_;
  std::string address_;
  int port_;
  std::string secret_;
  const Signals& signals_;
  const LaunchOutput& output_;
  StoreClient client_;
  std::int64_t launcher_ = 1;
  int attempt_ = -1;
  std::unique_ptr<ElasticMember> member_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace accelerate::cli
