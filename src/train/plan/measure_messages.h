#pragma once

#include <functional>

#include <accelerate/planning.h>
#include <accelerate/world.h>

#include "train/plan/clocked.h"

namespace accelerate::detail {

/// Times messages between ranks, which compute meanwhile if they share
/// processors: a rank whose message has arrived must wait for a processor,
/// which takes longer the more ranks compute.
class ClockedMessages {
 public:
  /// `cluster`: has the speed of products. Timing all messages takes about
  /// `seconds`.
  ClockedMessages(
      const World& world,
      const ClusterSpeeds& cluster,
      double seconds);

  /// Seconds that a call adds to the ranks' computation.
  [[nodiscard]] double seconds_of(const std::function<void()>& call);
  /// The longer of seconds_of() and the time of the call on idle ranks.
  [[nodiscard]] double longest_of(const std::function<void()>& call);

 private:
  Clocked clocked_;
  std::function<void()> compute_;
  double computing_;
};

/// Measures a link by all-reduces: the latency of a step, and the bytes per
/// second that a rank sends. `share`: a rank's share of a processor for
/// copying; 1 if ranks have links of their own.
LinkSpeed measure_link(
    const World& world,
    const Group& group,
    double share,
    ClockedMessages& messages);

/// Measures a message between two ranks while each rank exchanges messages with
/// all others, as sharding does.
double measure_message(const World& world, ClockedMessages& messages);

}  // namespace accelerate::detail
