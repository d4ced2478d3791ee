#pragma once

#include <optional>
#include <string>

#include <accelerate/planning.h>

#include "planning/simulation/programs.h"

namespace accelerate::detail {

/// The resources of the rank that stands for all others, which do the same at
/// the same time.
struct RankResources {
  std::size_t processor = 0;
  std::size_t inside_node = 0;
  std::size_t between_nodes = 0;
  /// The share of a processor that the rank has while all ranks compute.
  double share = 1;
};

/// Adds them to `programs`. Of `num_ranks` ranks, those of a node share
/// processors if the cluster has shared ones.
RankResources
add_rank(RankPrograms& programs, const ClusterSpeeds& cluster, int num_ranks);

/// The ranks of a collective: `size` ranks, each `stride` after the other.
struct RankGroup {
  int size = 1;
  int stride = 1;
};

enum class CollectivePattern {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all
};

/// How a tensor is sent: in `count` collectives, and whether each of them is made
/// of messages between all pairs of ranks.
struct CollectiveMessages {
  double count = 1;
  bool are_between_pairs = false;
};

/// A collective as the rank sees it. `bytes`: of the full tensor; for an
/// all-to-all, what the rank sends, also to itself. Bandwidth-optimal within and
/// between nodes; latencies grow with the logarithm of the group, or with its
/// size for an all-to-all. Ranks that share processors do not compute during
/// latencies, either.
SimulatedMessage collective(
    const ClusterSpeeds& cluster,
    const RankResources& rank,
    CollectivePattern kind,
    const RankGroup& group,
    double bytes,
    std::string what,
    const CollectiveMessages& messages = {});

/// A message to the rank `stride` further. `latency`: other seconds than those of
/// a message.
SimulatedMessage transfer(
    const ClusterSpeeds& cluster,
    const RankResources& rank,
    int stride,
    double bytes,
    std::string what,
    std::optional<double> latency = std::nullopt);

/// Seconds that a message takes by itself.
double seconds_alone(
    const RankPrograms& programs,
    const SimulatedMessage& message);

}  // namespace accelerate::detail
