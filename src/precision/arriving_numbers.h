#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace accelerate::detail {

/// Numbers on their way from a device to the host.
class ArrivingNumbers {
 public:
  explicit ArrivingNumbers(const at::Tensor& on_device);
  /// Waits until they are there.
  [[nodiscard]] const at::Tensor& get();

 private:
  at::Tensor on_host_;
  c10::Event arrived_;
};

}  // namespace accelerate::detail
