#pragma once

#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace accelerate::testing {

/// From now on, this thread's operators with tensors on a pretend device copy
/// others from host memory to it, or to the tensor that they change, so that
/// tests that give a model such inputs can run there. What operators call
/// themselves stays strict.
void let_devices_take_host_tensors();

/// Does so for one operator, on threads that asked for it. Returns false if it
/// then takes place on the host.
bool gather_host_inputs(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

}  // namespace accelerate::testing
