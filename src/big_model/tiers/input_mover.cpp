#include "big_model/tiers/input_mover.h"

#include <vector>

#include <ATen/core/List.h>

#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

bool is_elsewhere(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.device() != device &&
      !(tensor.dim() == 0 && tensor.is_cpu());
}

}  // namespace

void move_arguments(GatedCall& call, c10::Device device) {
  for (c10::IValue& value : call.arguments()) {
    if (value.isTensor()) {
      if (is_elsewhere(value.toTensor(), device))
        value = value.toTensor().to(device);
    } else if (value.isTensorList()) {
      const std::vector<at::Tensor> tensors = value.toTensorVector();
      c10::List<at::Tensor> moved;
      for (const at::Tensor& tensor : tensors)
        moved.push_back(
            is_elsewhere(tensor, device) ? tensor.to(device) : tensor);
      value = std::move(moved);
    }
  }
}

void InputMover::call(GatedCall& call) {
  for (const c10::IValue& value : call.arguments()) {
    if (find_watch(value, owner_) == nullptr) continue;
    move_arguments(call, value.toTensor().device());
    break;
  }
  call.run();
}

}  // namespace accelerate::detail
