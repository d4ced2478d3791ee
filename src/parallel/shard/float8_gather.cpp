#include "parallel/shard/float8_gather.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "gate/stop_at_gates.h"

namespace accelerate::detail {

namespace {
constexpr at::ScalarType kGathered = at::kFloat8_e4m3fn;
}  // namespace

at::Tensor float8_bytes(const at::Tensor& rows, const at::Tensor& scale) {
  return cast_with_scale(rows.detach(), kGathered, scale)
      .values.view(at::kByte);
}

at::Tensor float8_values(const at::Tensor& bytes, const at::Tensor& scale) {
  return Float8Matrix{bytes.view(kGathered), scale.to(bytes.device())}
      .dequantize();
}

std::shared_ptr<at::Tensor> GatheredScales::add(const at::Tensor& local) {
  weights_.push_back({local.detach(), std::make_shared<at::Tensor>()});
  return weights_.back().scale;
}

void GatheredScales::compute() {
  if (is_known_ || weights_.empty()) return;
  const at::NoGradGuard no_grad;
  // Weights may lie in files.
  const StopAtGates brings;
  std::vector<at::Tensor> found;
  for (const Weight& weight : weights_)
    found.push_back(amax_of(weight.local).to(at::kFloat));
  const at::Tensor amaxes = at::stack(found);
  for (const Group& group : groups_) group.all_reduce(amaxes, ReduceOp::max);
  for (std::size_t i = 0; i < weights_.size(); ++i)
    *weights_[i].scale = scale_of(amaxes[static_cast<std::int64_t>(i)], cast_);
  is_known_ = true;
}

void GatheredScales::forget() {
  is_known_ = false;
  for (const Weight& weight : weights_) weight.scale->reset();
}

}  // namespace accelerate::detail
