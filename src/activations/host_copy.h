#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

/// A temporary copy of a device's tensor in host memory.
class HostCopy {
 public:
  /// True for strided tensors only.
  static bool is_possible(const at::Tensor& tensor) {
    return tensor.has_storage() && tensor.layout() == at::kStrided;
  }

  HostCopy(const at::Tensor& tensor, bool pin_memory)
      : device_(tensor.device()) {
    const at::NoGradGuard no_grad;
    memory_ = at::empty_like(
        tensor,
        at::TensorOptions(at::kCPU)
            .pinned_memory(pin_memory)
            .requires_grad(false));
    memory_.copy_(tensor, /*non_blocking=*/pin_memory);
  }

  [[nodiscard]] at::Tensor back() const {
    const at::NoGradGuard no_grad;
    return memory_.to(
        memory_.options().device(device_).pinned_memory(false),
        /*non_blocking=*/memory_.is_pinned());
  }

 private:
  at::Device device_;
  at::Tensor memory_;
};

}  // namespace accelerate::detail
