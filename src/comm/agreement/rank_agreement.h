#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <accelerate/world.h>

#include "comm/agreement/desync_detector.h"
#include "comm/agreement/store_group.h"

namespace accelerate::detail {

/// Lets all ranks agree through the store, beside the traffic of training: on
/// making the same call, on rank 0's decisions, and on whether a call succeeded
/// everywhere. Used by one thread.
class RankAgreement {
 public:
  /// `position` is called on another thread (see DesyncDetector). Connections
  /// are opened and threads started on first use.
  RankAgreement(
      World world,
      std::function<DesyncDetector::Position()> position);

  /// Starts the thread that answers ranks waiting in a call that this rank has
  /// skipped. The calls below do this themselves; call it early if a rank may
  /// never make any of them.
  void start_detector();

  /// Returns when all ranks are in `call` with the same `arguments`. Throws
  /// DistributedError with each rank's call if they are not.
  void require_same_call(const std::string& call, const std::string& arguments);

  /// Every rank passes its `failure`, or an empty string. If any rank failed,
  /// all throw a CheckpointError that begins with `what`.
  void require_success(
      const std::string& failure,
      const std::string& call,
      const std::string& what);

  /// Returns the failures of all ranks, as require_success() would throw them;
  /// empty if no rank failed.
  std::string gather_failures(
      const std::string& failure,
      const std::string& call);

  /// Whether this is the rank that decides.
  [[nodiscard]] bool is_leader() const { return world_.rank() == 0; }
  /// Returns the leader's `decision` on all ranks.
  std::string decide(const std::string& decision, const std::string& call);

 private:
  StoreGroup& calls();

  World world_;
  std::function<DesyncDetector::Position()> position_;
  std::unique_ptr<DesyncDetector> detector_;
  std::optional<StoreGroup> calls_;
};

}  // namespace accelerate::detail
