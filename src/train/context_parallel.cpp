#include <accelerate/accelerator.h>

#include "engines/parallelism.h"
#include "train/session.h"

namespace accelerate {

ContextParallelScope Accelerator::maybe_context_parallel(
    const std::vector<at::Tensor>& buffers,
    const std::vector<std::int64_t>& buffer_seq_dims,
    const std::vector<at::Tensor>& no_restore_buffers,
    const ContextParallelOptions& options) const {
  const Group& group = mesh().group(Axis::context);
  if (group.size() == 1 && !session_->has_warned_of_context) {
    session_->has_warned_of_context = true;
    session_->world.logger().log_once_per_world(
        LogLevel::warning,
        "train",
        "maybe_context_parallel() divides nothing, since context is 1; set it "
        "(cp_size or sp_size of ParallelismConfig) to use it");
  }
  ContextParallelOptions resolved = options;
  if ((!resolved.rotation || !resolved.exchange_heads) && group.size() > 1) {
    const ParallelismConfig config = detail::resolve_parallelism(
        session_->request_sources.parallel.parallelism_config.value_or(
            ParallelismConfig()),
        session_->settings);
    if (!resolved.rotation && config.cp_comm_strategy == "alltoall")
      resolved.rotation = KeyValueRotation::alltoall;
    if (!resolved.exchange_heads) resolved.exchange_heads = *config.sp_size > 1;
    if (!resolved.sequence_length &&
        !config.sp_seq_length_is_variable.value_or(true))
      resolved.sequence_length = config.sp_seq_length;
  }
  return ContextParallelScope(
      group, buffers, buffer_seq_dims, no_restore_buffers, resolved);
}

}  // namespace accelerate
