#include <accelerate/accelerator.h>

#include "train/session/session.h"

namespace accelerate {

ContextParallelScope Accelerator::maybe_context_parallel(
    const std::vector<at::Tensor>& buffers,
    const std::vector<std::int64_t>& buffer_seq_dims,
    const std::vector<at::Tensor>& no_restore_buffers,
    const ContextParallelOptions& options) const {
  const Group& group = mesh().group(Axis::context);
  if (group.size() == 1 && !session_->layout.has_warned_of_context) {
    session_->layout.has_warned_of_context = true;
    session_->world.logger().log_once_per_world(
        LogLevel::warning,
        "train",
        "maybe_context_parallel() divides nothing, since context is 1; set it "
        "(cp_size or sp_size of ParallelismConfig) to use it");
  }
  ContextParallelOptions resolved = options;
  const detail::SequenceRequest& request =
      session_->layout.plan_request.training.sequence;
  if (!resolved.rotation && request.rotate_blocks)
    resolved.rotation = KeyValueRotation::alltoall;
  if (!resolved.exchange_heads)
    resolved.exchange_heads = request.exchange_heads;
  if (!resolved.sequence_length) resolved.sequence_length = request.length;
  return ContextParallelScope(
      group, buffers, buffer_seq_dims, no_restore_buffers, resolved);
}

}  // namespace accelerate
