#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "activations/tape.h"

namespace accelerate::detail {

/// While it lives, this thread's operators are not recorded for recomputation:
/// what they make counts as tensors from outside, which are kept. For what
/// depends on other ranks, or is written by no operator.
class Unrecorded {
 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_{kRecordingKey};
};

}  // namespace accelerate::detail
