#pragma once

#include <c10/core/DispatchKey.h>

namespace accelerate::detail {

/// The dispatch key of gated tensors, which LibTorch does not use itself.
inline constexpr c10::DispatchKey kGateKey = c10::DispatchKey::DeferredInit;

/// Makes the dispatcher call gates for operators with that key; later calls do
/// nothing.
void register_gate_fallback();

}  // namespace accelerate::detail
