#include <accelerate/accelerator_processes.h>
#include <accelerate/planning.h>

#include <algorithm>
#include <cstdint>

namespace accelerate {

LayoutPlan AcceleratorProcesses::plan(
    const TransformerShape& shape,
    const LayoutPlanOptions& options) const {
  LayoutPlanOptions own = options;
  if (own.num_ranks == 0) own.num_ranks = num_processes();
  if (!own.cluster) {
    // No micro-batch is larger than the batch.
    constexpr std::int64_t kMostTokens = 8192;
    own.cluster = measure_cluster(
        shape,
        options.sequence_length,
        std::min(kMostTokens, options.batch_tokens),
        options.measuring_seconds);
  }
  return plan_layout(shape, own);
}

}  // namespace accelerate
