#include <accelerate/activation_checkpointing.h>

#include "activations/recorder.h"

namespace accelerate::detail {

CheckpointScope::CheckpointScope(const CheckpointOptions& options) {
  // The operators that were compared, in all checkpoints of this thread.
  // Thread-local so that ranks that are threads do not count on comparisons of
  // each other, which would make results depend on timing.
  thread_local const auto compared = std::make_shared<ComparedOperators>();
  recording_ = std::make_unique<Recording>("checkpoint()", options, compared);
}

CheckpointScope::~CheckpointScope() = default;

}  // namespace accelerate::detail
