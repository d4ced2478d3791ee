#pragma once

#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "exported/graph/instruction.h"

namespace accelerate::detail {

/// What a run of a program depends on besides its inputs.
struct RunContext {
  /// Whether the root module trains.
  bool is_training = true;
  /// Whether the caller records gradients. A block of Python that turns
  /// recording off and on again returns to this.
  bool records_gradients = true;
  /// Devices of this type in the graph stand for the model's device.
  c10::DeviceType exported_on = c10::kCPU;
  c10::Device device = c10::kCPU;
};

/// Runs a graph and returns its outputs. Operators are called as LibTorch's C++
/// functions call them: autograd, autocast and every other dispatch key see
/// them. Values are freed after their last use. An operator's error gets the
/// instruction's place.
std::vector<c10::IValue> run_code(
    const Code& code,
    std::vector<c10::IValue> inputs,
    const RunContext& context);

}  // namespace accelerate::detail
