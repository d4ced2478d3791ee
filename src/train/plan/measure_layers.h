#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/planning.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// What is timed of whole layers.
struct MeasuredLayers {
  /// All sizes are set.
  const TransformerShape& shape;
  /// Tokens of a sequence, and at most of a micro-batch.
  std::int64_t length = 0;
  std::int64_t most_tokens = 0;
};

/// How many times longer layers take together than their parts make of it, in
/// micro-batches of several sizes: caches keep less of larger ones, and weights
/// count more in smaller ones. The ranks of a machine split each layer two by two,
/// four by four and so on, and products are narrower then; how long they take for
/// a sum is timed, too. `cluster` has the speeds of the parts; `share`: of a
/// processor, that a rank has. Takes about so many seconds.
std::vector<LayerSlowdown> measure_slowdowns(
    const World& world,
    double seconds,
    const MeasuredLayers& layers,
    double share,
    const ClusterSpeeds& cluster);

/// What a block of a ring costs a forward (ClusterSpeeds::seconds_per_ring_block),
/// among as many ranks of a machine as a ring may have. A micro-batch has about a
/// thousand tokens, or as many as there are at most. Takes about so many seconds.
double measure_ring_block(
    const World& world,
    double seconds,
    const MeasuredLayers& layers);

}  // namespace accelerate::detail
