#pragma once

#include <c10/core/DispatchKey.h>

/// Dispatch keys that a thread includes for a while, so that its operators are
/// intercepted whatever tensors they take. LibTorch uses both only to test its
/// dispatcher; they come before autograd, autocast and the gate.
namespace accelerate::detail {

/// Replaces operators with other functions; comes before kRecordingKey, so that
/// recordings have what was computed instead.
inline constexpr c10::DispatchKey kReplacingKey =
    c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Records operators (activations/tape.h).
inline constexpr c10::DispatchKey kRecordingKey =
    c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Makes operators without a replacement ignore kReplacingKey; later calls do
/// nothing.
void register_replacing_key();

}  // namespace accelerate::detail
