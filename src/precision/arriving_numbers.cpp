#include "precision/arriving_numbers.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

ArrivingNumbers::ArrivingNumbers(const at::Tensor& on_device)
    : on_host_(on_device.to(at::kCPU, /*non_blocking=*/true)),
      arrived_(on_device.device().type()) {
  const c10::impl::VirtualGuardImpl guard(on_device.device().type());
  arrived_.record(guard.getStream(on_device.device()));
}

const at::Tensor& ArrivingNumbers::get() {
  arrived_.synchronize();
  return on_host_;
}

}  // namespace accelerate::detail
