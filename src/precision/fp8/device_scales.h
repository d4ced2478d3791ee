#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "precision/fp8/scale_rules.h"

namespace accelerate::detail {

/// Delayed scales of many tensors, computed on their device as DelayedScale
/// computes them on the host, which need not wait for it.
class DeviceScales {
 public:
  /// Begins with the values and on the device of `scales`.
  DeviceScales(
      const std::vector<const DelayedScale*>& scales,
      const DelayedScaleOptions& options,
      c10::Device device);

  /// Ends a step, given the amaxes of all tensors: fp32, [tensors], not NaN. If
  /// all are 0, there was no step.
  void update(const at::Tensor& amaxes);
  /// The scales of the next step: fp32, [tensors]. Later updates do not change
  /// them.
  [[nodiscard]] const at::Tensor& scales() const { return scales_; }

 private:
  DelayedScaleOptions options_;
  at::Tensor largest_;      // fp32 [tensors]: what an amax becomes
  at::Tensor scales_;       // fp32 [tensors]
  at::Tensor history_;      // fp32 [length, tensors]
  at::Tensor num_updates_;  // int64 []
};

}  // namespace accelerate::detail
