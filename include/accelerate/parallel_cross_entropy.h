#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/world.h>

namespace accelerate {

/// The mean cross entropy of logits whose classes are split over the ranks of
/// `group`, without gathering them: ranks exchange three numbers per target.
/// Use it for the logits of a layer that tensor parallelism leaves split
/// (`output_layouts` or `logits_layouts` Shard{-1}), with
/// `mesh().group(Axis::tensor)`.
///
/// `logits`: [..., classes of this rank], floating-point; ranks have
/// consecutive classes, in the order of the group, not necessarily equally
/// many. `targets`: [...], 64-bit numbers of classes among all, the same on all
/// ranks. Those that are `ignore_index` count neither in the sum nor in the
/// mean; if all are, the result is NaN, as for cross_entropy. Returns a 0-d
/// fp32 tensor (fp64 for such logits), the same on all ranks; its gradient
/// flows to this rank's logits. Collective.
///
/// Throws ConfigError for shapes that do not fit and, on the CPU, for targets
/// that no rank has. (Shoeybi et al., "Megatron-LM", 2019, section 3.)
[[nodiscard]] ACCELERATE_API at::Tensor parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const Group& group,
    std::int64_t ignore_index = -100);

}  // namespace accelerate
