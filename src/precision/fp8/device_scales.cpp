#include "precision/fp8/device_scales.h"

#include <cmath>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

DeviceScales::DeviceScales(
    const std::vector<const DelayedScale*>& scales,
    const DelayedScaleOptions& options,
    c10::Device device)
    : options_(options) {
  std::vector<float> largest, begin, history;
  for (const DelayedScale* const scale : scales) {
    largest.push_back(largest_value(scale->format()));
    begin.push_back(scale->scale());
    history.insert(
        history.end(), scale->history().begin(), scale->history().end());
  }
  const auto count = static_cast<std::int64_t>(scales.size());
  largest_ = at::tensor(largest).to(device);
  scales_ = at::tensor(begin).to(device);
  history_ = at::tensor(history).view({count, -1}).t().contiguous().to(device);
  num_updates_ =
      at::full({}, count == 0 ? 0 : scales.front()->num_updates(), at::kLong)
          .to(device);
}

void DeviceScales::update(const at::Tensor& amaxes) {
  const at::NoGradGuard no_grad;
  const at::Tensor is_step = amaxes.max().gt(0);
  at::Tensor history = history_.clone();
  history.select(0, 0).copy_(amaxes);
  const at::Tensor num_updates = num_updates_ + is_step.to(at::kLong);
  const at::Tensor is_due =
      is_step.logical_and(num_updates.remainder(options_.interval).eq(0));
  const at::Tensor chosen =
      options_.uses_largest ? history.amax(0) : history.select(0, 0);
  const at::Tensor next =
      largest_.div(chosen)
          .mul_(std::ldexp(1.0, -static_cast<int>(options_.margin)))
          .clamp_max_(std::numeric_limits<float>::max());
  const at::Tensor is_changed =
      is_due.logical_and(at::isfinite(chosen)).logical_and_(chosen.gt(0));
  scales_ = at::where(is_changed, next, scales_);
  history = history.roll(-1, 0);
  history.select(0, 0).zero_();
  history_ = at::where(is_step, history, history_);
  num_updates_ = num_updates;
}

}  // namespace accelerate::detail
