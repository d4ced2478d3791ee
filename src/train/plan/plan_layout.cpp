#include <accelerate/planner.h>

#include <algorithm>
#include <cstdint>

namespace accelerate {

LayoutPlan plan_layout(
    const World& world,
    const TransformerShape& shape,
    const LayoutPlanOptions& options) {
  LayoutPlanOptions own = options;
  if (own.num_ranks == 0) own.num_ranks = world.size();
  if (!own.cluster) {
    // No micro-batch is larger than the batch.
    constexpr std::int64_t kMostTokens = 8192;
    own.cluster = measure_cluster(
        world,
        shape,
        options.sequence_length,
        std::min(kMostTokens, options.batch_tokens),
        options.measuring_seconds);
  }
  return plan_layout(shape, own);
}

}  // namespace accelerate
