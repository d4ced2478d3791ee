#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/planned_step.h>
#include <accelerate/detail/prepare_items.h>
#include <accelerate/export.h>
#include <accelerate/memory_plan.h>
#include <accelerate/planning.h>
#include <accelerate/world.h>

// Plans for the ranks of a World, such as `accelerator.world()`; planning.h
// plans for any ranks.

namespace accelerate {

/// Measures how fast these ranks and the links between them are, on all ranks
/// at once: forward and backward of a layer like those of `shape` with
/// sequences of that length, an optimizer step, and messages within and between
/// nodes. Nothing else should run meanwhile. Micro-batches of more than
/// `most_tokens` tokens, and those for which there is no time left, are not
/// measured, and are rated like the largest that is. `seconds`: roughly how
/// long this takes, at least 0; the less time, the fewer calls are timed, but
/// never fewer than two. Collective; the same on all ranks. Throws ConfigError
/// for invalid arguments.
[[nodiscard]] ACCELERATE_API ClusterSpeeds measure_cluster(
    const World& world,
    const TransformerShape& shape,
    std::int64_t sequence_length,
    std::int64_t most_tokens = 8192,
    double seconds = 15);
/// Measures with layers of medium size.
[[nodiscard]] ACCELERATE_API ClusterSpeeds
measure_cluster(const World& world, double seconds = 15);

/// Plans how to divide the training of a transformer among ranks, by simulating
/// steps of many layouts (planning.h). Without options.num_ranks it plans for
/// these ranks, without options.cluster for the speeds that measure_cluster()
/// finds. Collective; the same on all ranks.
[[nodiscard]] ACCELERATE_API LayoutPlan plan_layout(
    const World& world,
    const TransformerShape& shape,
    const LayoutPlanOptions& options = {});

/// Estimates the memory that training `module` takes per rank, for every way of
/// splitting it, before it is prepared: `loss_of(num_samples)` is run forward
/// and backward on the CPU with 2 and with 4 samples, and its memory is
/// extrapolated and simulated for each way. Random states, gradients and the
/// module are left as they were. No communication. Throws ConfigError if the
/// module is not on the CPU or the two runs differ in more than sizes.
template <detail::PreparableModule M>
[[nodiscard]] MemoryPlan plan_memory(
    const World& world,
    M module,
    const std::function<at::Tensor(std::int64_t num_samples)>& loss_of,
    const MemoryPlanOptions& options = {}) {
  return detail::plan_memory(world, *module, loss_of, options);
}
/// Estimates it with the mean of `module->forward(inputs...)` as the loss.
/// `inputs` is a tensor or a tuple of them, with samples along dimension 0,
/// which are repeated as needed.
template <detail::PreparableModule M, detail::ExampleInputs Inputs>
[[nodiscard]] MemoryPlan plan_memory(
    const World& world,
    M module,
    const Inputs& inputs,
    const MemoryPlanOptions& options = {}) {
  const detail::ForwardLoss<M, Inputs> loss_of{module, inputs};
  return plan_memory(world, module, loss_of, loss_of.with_batch_size(options));
}

}  // namespace accelerate
