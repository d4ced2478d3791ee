#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "activations/tape.h"

namespace accelerate::detail {

/// While alive, keeps this thread's operators from being recorded for
/// recomputation: their results count as tensors from outside, which are kept.
/// For values that depend on other ranks, or that no operator writes.
class Unrecorded {
 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_{kRecordingKey};
};

}  // namespace accelerate::detail
