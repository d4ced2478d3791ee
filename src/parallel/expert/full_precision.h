#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>

namespace accelerate::detail {

/// While alive, keeps autocast from casting this thread's operators on the
/// device.
class FullPrecisionScope {
 public:
  explicit FullPrecisionScope(c10::DeviceType device)
      : device_(device), was_on_(at::autocast::is_autocast_enabled(device)) {
    if (was_on_) at::autocast::set_autocast_enabled(device_, false);
  }
  FullPrecisionScope(const FullPrecisionScope&) = delete;
  FullPrecisionScope& operator=(const FullPrecisionScope&) = delete;
  ~FullPrecisionScope() {
    if (was_on_) at::autocast::set_autocast_enabled(device_, true);
  }

 private:
  c10::DeviceType device_;
  bool was_on_;
};

}  // namespace accelerate::detail
