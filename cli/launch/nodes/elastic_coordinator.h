#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/nodes/elastic_keeper.h"
#include "cli/launch/nodes/heartbeats.h"
#include "cli/store/store_client.h"

namespace accelerate::cli {

/// The keys for one attempt of an elastic group on several machines: its
/// orders, how it ends, and each machine's reports.
std::string elastic_key(int attempt, const char* what);
std::string report_key(int attempt, int machine);

/// Connects the store and machine 0's ElasticKeeper for one attempt: reads
/// reports, detects launchers that are gone, and writes orders.
class ElasticCoordinator {
 public:
  ElasticCoordinator(
      const LaunchPlan& plan,
      int attempt,
      int num_restarts_left);

  /// Does what is due; call it often. Throws DistributedError as StoreClient
  /// does.
  void keep(StoreClient& client);
  /// Number of machines that had joined before the group began.
  [[nodiscard]] std::int64_t num_machines() const;

 private:
  using Clock = std::chrono::steady_clock;

  void read(StoreClient& client, int machine, std::vector<int>& gone);
  void begin();
  void write(StoreClient& client);

  const LaunchPlan& plan_;
  int attempt_;
  int num_restarts_left_;
  Heartbeats heartbeats_;
  // Each machine's launcher before the group begins; 0 if none.
  std::vector<std::int64_t> launchers_;
  std::int64_t num_before_ = 0;
  Clock::time_point last_change_ = Clock::now();
  std::vector<std::string> reports_;
  std::optional<ElasticKeeper> keeper_;
  std::string written_;
};

}  // namespace accelerate::cli
