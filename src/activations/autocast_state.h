#pragma once

#include <array>

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace accelerate::detail {

/// Whether autocast is on, and its dtype, on the CPU and the accelerator.
struct AutocastState {
  struct OfDevice {
    c10::DeviceType type = c10::DeviceType::CPU;
    bool is_enabled = false;
    c10::ScalarType dtype = c10::ScalarType::BFloat16;
  };
  std::array<OfDevice, 2> devices = {};

  static AutocastState now() {
    AutocastState state;
    state.devices[0] = of(c10::DeviceType::CPU);
    state.devices[1] = of(
        at::getAccelerator(/*checked=*/false).value_or(c10::DeviceType::CPU));
    return state;
  }

  void set() const {
    for (const OfDevice& device : devices) {
      at::autocast::set_autocast_enabled(device.type, device.is_enabled);
      at::autocast::set_autocast_dtype(device.type, device.dtype);
    }
  }

 private:
  static OfDevice of(c10::DeviceType type) {
    return {
        type,
        at::autocast::is_autocast_enabled(type),
        at::autocast::get_autocast_dtype(type)};
  }
};

/// Restores the autocast state when destroyed.
class AutocastStateScope {
 public:
  AutocastStateScope() { at::autocast::increment_nesting(); }
  ~AutocastStateScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.set();
  }
  AutocastStateScope(const AutocastStateScope&) = delete;
  AutocastStateScope& operator=(const AutocastStateScope&) = delete;

 private:
  AutocastState before_ = AutocastState::now();
};

}  // namespace accelerate::detail
