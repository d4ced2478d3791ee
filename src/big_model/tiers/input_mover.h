#pragma once

#include <c10/core/Device.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// Copies the tensors among an operator's arguments that are on other devices.
/// Undefined ones stay, and scalars of the CPU, which operators take as they
/// are.
void move_arguments(GatedCall& call, c10::Device device);

/// Watches weights of a model that is spread over several devices: an operator
/// runs where its first weight is, and its other tensors follow.
class InputMover final : public GateKeeper {
 public:
  /// `owner`: that of the watches (TensorWatch).
  explicit InputMover(const void* owner) : owner_(owner) {}
  void call(GatedCall& call) override;

 private:
  const void* owner_;
};

}  // namespace accelerate::detail
