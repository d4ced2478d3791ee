#pragma once

#include <optional>
#include <string>

#include <accelerate/planning.h>

#include "planning/simulation/programs.h"

namespace accelerate::detail {

/// Resources of the rank that stands for all ranks, which do the same work at
/// the same time.
struct RankResources {
  std::size_t processor = 0;
  std::size_t inside_node = 0;
  std::size_t between_nodes = 0;
  /// The rank's share of a processor while all ranks compute.
  double share = 1;
};

/// Adds the resources of a rank to `programs`. `num_ranks`: all ranks; those on
/// a node share processors if the cluster has shared processors.
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

/// How a tensor is sent: in `count` collectives, each of which may consist of
/// messages between all pairs of ranks.
struct CollectiveMessages {
  double count = 1;
  bool are_between_pairs = false;
};

/// A collective as the rank sees it. `bytes`: size of the full tensor; for an
/// all-to-all, the bytes that the rank sends, including those to itself.
/// Bandwidth-optimal within and between nodes; latency grows with the logarithm
/// of the group size, or with the size itself for an all-to-all. Ranks that
/// share processors cannot compute during latencies either.
SimulatedMessage collective(
    const ClusterSpeeds& cluster,
    const RankResources& rank,
    CollectivePattern kind,
    const RankGroup& group,
    double bytes,
    std::string what,
    const CollectiveMessages& messages = {});

/// A message to the rank `stride` ranks away. `latency`: overrides the default
/// seconds per message.
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
