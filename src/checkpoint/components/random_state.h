#pragma once

#include <c10/core/Device.h>

#include <ATen/core/Tensor.h>

#include <accelerate/checkpoint.h>

#include "checkpoint/components/component.h"

namespace accelerate::detail {

/// Returns a copy of the state of a device's default generator.
at::Tensor generator_state(at::Device device);
void set_generator_state(at::Device device, const at::Tensor& state);

/// The states of the default generators of the CPU and of `device`, by device.
AnyStateful random_states(at::Device device);

}  // namespace accelerate::detail
