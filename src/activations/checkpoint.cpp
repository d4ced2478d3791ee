#include <accelerate/activation_checkpointing.h>

#include "activations/recorder.h"

namespace accelerate::detail {

CheckpointScope::CheckpointScope(const CheckpointOptions& options) {
  // What was compared, in all checkpoints of this thread.
  thread_local const auto compared = std::make_shared<ComparedOperators>();
  recording_ = std::make_unique<Recording>("checkpoint()", options, compared);
}

CheckpointScope::~CheckpointScope() = default;

}  // namespace accelerate::detail
