#pragma once

#include <c10/core/DispatchKey.h>

namespace accelerate::detail {

/// The dispatch key under which another function takes an operator's place
/// while a thread includes it. LibTorch uses it only to test its dispatcher; it
/// comes after kRecordingKey, and before autograd, autocast and the gate.
/// Recordings leave such an operator out: what the function returns counts as
/// a tensor from outside the segment, and is kept.
inline constexpr c10::DispatchKey kReplacingKey =
    c10::DispatchKey::TESTING_ONLY_GenericWrapper;

}  // namespace accelerate::detail
