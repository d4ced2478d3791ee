#pragma once

#include <vector>

namespace accelerate::detail {

/// The ratio of a layer's measured time to the time predicted from the speeds
/// of its parts, for micro-batches of `tokens` tokens on each of `tensor`
/// ranks.
struct LayerSlowdown {
  double tokens = 0;
  double factor = 1;
  int tensor = 1;
  /// Where ranks share processors: time of an all-reduce of the layer's output
  /// over these ranks while they compute, including waits for other ranks.
  /// 0: derived from the speed of the link.
  double reduce_seconds = 0;
};

/// Costs beside the speeds of parts that measure_cluster measures,
/// mostly of ranks that share processors. By default none is known.
struct MeasuredCosts {
  /// Above 0: the ranks of a node are processes on this many processors, which
  /// also copy the messages, so communication cannot overlap with computation;
  /// `flops` and memory_bytes_per_second are then per processor.
  int shared_processors = 0;
  /// In ascending order of `tensor`, then of `tokens`; factors are interpolated
  /// between token counts. Empty: 1 for all. A layout uses the largest measured
  /// degree of `tensor` that does not exceed its own; if that is 1, its token
  /// count is scaled down to the share of elements that each rank along
  /// `tensor` touches.
  std::vector<LayerSlowdown> layer_slowdowns = {};
  /// Time per token in a forward to choose its experts and move its rows to
  /// them and back, besides the layer's other memory traffic. Each rank along
  /// `tensor` spends it on all tokens.
  double seconds_per_routed_token = 0;
  /// Fixed cost of an optimizer step per parameter, however small its shard.
  /// Close to zero for fused optimizers.
  double seconds_per_stepped_parameter = 0;
  /// Bytes per second at which a loss writes and reads logits, which fit into
  /// caches less often than activations. 0: memory_bytes_per_second.
  double loss_bytes_per_second = 0;
  /// Fixed cost of a message from one rank to another while ranks compute.
  /// Sharding, rings and pipelines send such messages. 0: the latency of the
  /// link.
  double seconds_per_message = 0;
  /// If ranks share processors: the fixed cost in a forward of each block of
  /// keys and values that a ring passes around, besides its bytes and the
  /// operations of attention. A backward costs twice that. 0:
  /// seconds_per_message.
  double seconds_per_ring_block = 0;
};

}  // namespace accelerate::detail
