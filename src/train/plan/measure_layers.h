#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/planning.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// The whole layers that are timed.
struct MeasuredLayers {
  /// All sizes are set.
  const TransformerShape& shape;
  /// Tokens per sequence, and at most per micro-batch.
  std::int64_t length = 0;
  std::int64_t most_tokens = 0;
};

/// Measures how much longer whole layers take than predicted from their parts,
/// for micro-batches of several sizes: caches keep less of larger ones, and
/// weights count more in smaller ones. Also measures layers that groups of 2, 4
/// and more ranks of a machine split, whose products are narrower, and the time
/// of their all-reduces. `cluster`: has the speeds of the parts. `share`: a
/// rank's share of a processor. Takes about `seconds`.
std::vector<LayerSlowdown> measure_slowdowns(
    const World& world,
    double seconds,
    const MeasuredLayers& layers,
    double share,
    const ClusterSpeeds& cluster);

/// Measures what a block of a ring costs a forward
/// (MeasuredCosts::seconds_per_ring_block), on the largest possible ring of a
/// machine. A micro-batch has about a thousand tokens, or `most_tokens` if that
/// is fewer. Takes about `seconds`.
double measure_ring_block(
    const World& world,
    double seconds,
    const MeasuredLayers& layers);

}  // namespace accelerate::detail
