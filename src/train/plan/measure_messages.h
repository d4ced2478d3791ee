#pragma once

#include <functional>

#include <accelerate/planning.h>
#include <accelerate/world.h>

#include "train/plan/clocked.h"

namespace accelerate::detail {

/// Times messages between ranks that compute meanwhile where they share
/// processors: a rank whose message has come does not go on until others leave
/// it a processor, which takes longer the more of them compute.
class ClockedMessages {
 public:
  /// `cluster`: has the speed of products. All messages together are timed for
  /// about so many seconds.
  ClockedMessages(
      const World& world,
      const ClusterSpeeds& cluster,
      double seconds);

  /// What a call makes the ranks lose.
  [[nodiscard]] double seconds_of(const std::function<void()>& call);
  /// What a call takes while the ranks do nothing else, if that is longer.
  [[nodiscard]] double longest_of(const std::function<void()>& call);

 private:
  Clocked clocked_;
  std::function<void()> compute_;
  double computing_;
};

/// What an all-reduce tells of a link: a step's latency, and the bytes per second
/// that a rank sends. `share`: of a processor, that a rank has for copying; 1
/// where ranks have links of their own.
LinkSpeed measure_link(
    const World& world,
    const Group& group,
    double share,
    ClockedMessages& messages);

/// What a message between two ranks takes while a rank exchanges some with all
/// others, as those of shards do.
double measure_message(const World& world, ClockedMessages& messages);

}  // namespace accelerate::detail
