#pragma once

#include <c10/core/DispatchKey.h>

namespace accelerate::detail {

/// The dispatch key under which another function replaces an operator while a
/// thread includes the key. LibTorch uses it only to test its dispatcher; it
/// comes after kRecordingKey, and before autograd, autocast and the gate.
/// Recordings leave out such an operator: the function's result counts as a
/// tensor from outside the segment, and is kept.
inline constexpr c10::DispatchKey kReplacingKey =
    c10::DispatchKey::TESTING_ONLY_GenericWrapper;

}  // namespace accelerate::detail
