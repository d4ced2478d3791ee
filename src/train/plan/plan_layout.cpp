#include <accelerate/accelerator_processes.h>
#include <accelerate/planning.h>

namespace accelerate {

LayoutPlan AcceleratorProcesses::plan(
    const TransformerShape& shape,
    const LayoutPlanOptions& options) const {
  LayoutPlanOptions own = options;
  if (own.num_ranks == 0) own.num_ranks = num_processes();
  if (!own.cluster)
    own.cluster = measure_cluster(shape, options.sequence_length);
  return plan_layout(shape, own);
}

}  // namespace accelerate
