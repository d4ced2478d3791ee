#pragma once

#include <cstdint>
#include <optional>

namespace accelerate {

struct BackwardOptions {
  /// Keep the graph for another backward through it.
  bool retain_graph = false;
  /// Record the backward itself, for gradients of gradients.
  bool create_graph = false;
  /// The number of items of this rank's micro-batch that the loss is a mean of:
  /// tokens that are not masked, say. The gradient of the step is then that of
  /// the mean over all items of all micro-steps and ranks, however unevenly
  /// they are distributed; 0 is allowed. Give it in every micro-step of a
  /// window or in none. Costs one or two messages of one number per window.
  std::optional<std::int64_t> num_items = std::nullopt;
};

struct ClipNormOptions {
  /// 1, 2, any positive number, or infinity: the largest gradient.
  double norm_type = 2.0;
  /// Throw ConfigError if the norm is infinite or NaN. Waits for the device.
  bool error_if_nonfinite = false;
};

struct JoinOptions {
  /// For passes over prepared loaders that begin inside: false leaves the last
  /// round as it is, so that ranks may have different numbers of batches.
  /// Unset: each loader's own option.
  std::optional<bool> even_batches = std::nullopt;
  /// Sums of gradients are divided by the number of ranks, even when some have
  /// no data left. False: by the number of those that have.
  bool divide_by_initial_world_size = true;
};

}  // namespace accelerate
