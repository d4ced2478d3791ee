#include <accelerate/activation_checkpointing.h>

#include "activations/recorder.h"

namespace accelerate::detail {

CheckpointScope::CheckpointScope(const CheckpointOptions& options) {
  // The operators compared in all of this thread's checkpoints. Thread-local so
  // that ranks that are threads do not rely on each other's comparisons, which
  // would make results depend on timing.
  thread_local const auto compared = std::make_shared<ComparedOperators>();
  recording_ = std::make_unique<Recording>("checkpoint()", options, compared);
}

CheckpointScope::~CheckpointScope() = default;

}  // namespace accelerate::detail
