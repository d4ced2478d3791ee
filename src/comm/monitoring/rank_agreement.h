#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <accelerate/world.h>

#include "comm/monitoring/desync_detector.h"
#include "comm/monitoring/store_group.h"

namespace accelerate::detail {

/// What all ranks of a program agree on through the store, beside the traffic
/// of training: that they make the same call, what rank 0 decides for all, and
/// whether a call succeeded everywhere. Used by one thread.
class ACCELERATE_API RankAgreement {
 public:
  /// `position` is called by another thread (see DesyncDetector). Nothing is
  /// opened and no thread runs before it is needed.
  RankAgreement(
      World world,
      std::function<DesyncDetector::Position()> position);

  /// From here on this rank answers, on a thread, ranks that wait in a call
  /// that it has passed by. The calls below do this themselves; a program in
  /// which a rank might never make any calls it when training is prepared.
  void start_watching();

  /// Returns when all ranks are in `call` with the same `arguments`. Throws
  /// DistributedError with each rank's call if they are not.
  void require_same_call(const std::string& call, const std::string& arguments);

  /// Every rank says what failed for it, empty for nothing. If anything did,
  /// all throw CheckpointError that begins with `what`.
  void require_success(
      const std::string& failure,
      const std::string& call,
      const std::string& what);

  /// True on the rank that decides.
  [[nodiscard]] bool is_leader() const { return world_.rank() == 0; }
  /// Returns the leader's `decision` on all ranks.
  std::string decide(const std::string& decision, const std::string& call);

 private:
  StoreGroup& calls();

  World world_;
  std::function<DesyncDetector::Position()> position_;
  std::unique_ptr<DesyncDetector> watch_;
  std::optional<StoreGroup> calls_;
};

}  // namespace accelerate::detail
