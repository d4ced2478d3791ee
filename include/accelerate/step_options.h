#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

struct BackwardOptions {
  /// Keep the graph for another backward through it.
  bool retain_graph = false;
  /// Record the backward itself, for gradients of gradients.
  bool create_graph = false;
  /// The number of items (unmasked tokens, say) in this rank's micro-batch over
  /// which the loss is a mean. The step's gradient is then that of the mean
  /// over all items of all micro-steps and ranks, however unevenly distributed;
  /// 0 is allowed. Give it in every micro-step of a window or in none. Costs
  /// one or two all-reduces of one number per window.
  std::optional<std::int64_t> num_items = std::nullopt;
  /// The vector of the vector-Jacobian product, of the loss's shape, for a loss
  /// that is not a scalar. Undefined: ones.
  at::Tensor gradient = {};
  /// Leaf tensors in which gradients are accumulated; all others get none.
  /// Empty: all. On several ranks a backward that averages must reach every
  /// trainable parameter of a model or none of them, so list all that it uses,
  /// or call it inside no_sync().
  std::vector<at::Tensor> inputs = {};
};

struct ClipNormOptions {
  /// 1, 2, any positive number, or infinity: the largest gradient.
  double norm_type = 2.0;
  /// Throw ConfigError if the norm is infinite or NaN. Waits for the device.
  bool error_if_nonfinite = false;
};

/// A step that clips, as `clip_grad_norm_` on the optimizer's parameters would.
struct ClippedStepOptions {
  /// The largest norm, over the full gradients of all the optimizer's
  /// parameters.
  double max_norm = 1.0;
  /// See ClipNormOptions.
  double norm_type = 2.0;
  /// See ClipNormOptions.
  bool error_if_nonfinite = false;
};

struct GatherForMetricsOptions {
  /// For lists of tensors, one for each sample: join the ranks' lists, so that
  /// shapes may differ, instead of the rows of each tensor. Slower: the tensors
  /// go through host memory.
  bool use_gather_object = false;
};

struct JoinOptions {
  /// Overrides the option of prepared loaders for passes that begin inside:
  /// false leaves the last global step incomplete, so that ranks may have
  /// different numbers of batches. Unset: each loader's own option.
  std::optional<bool> even_batches = std::nullopt;
  /// Divide sums of gradients by the number of all ranks, even if some have run
  /// out of data. False: by the number of ranks that have data, so that
  /// gradients do not shrink towards the end.
  bool divide_by_initial_world_size = true;
};

}  // namespace accelerate
