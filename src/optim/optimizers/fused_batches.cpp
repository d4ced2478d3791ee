#include "optim/optimizers/fused_batches.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include "optim/optimizers/step_hooks.h"

namespace accelerate::detail {

at::Tensor DenseCopies::input(
    const at::Tensor& tensor,
    const at::Tensor& parameter) {
  if (tensor.strides() == parameter.strides() &&
      tensor.scalar_type() == parameter.scalar_type() && !tensor.is_neg()) {
    return tensor;
  }
  return at::empty_like(parameter).copy_(tensor);
}

at::Tensor DenseCopies::output(
    const at::Tensor& tensor,
    const at::Tensor& parameter) {
  at::Tensor dense = input(tensor, parameter);
  if (!dense.is_same(tensor)) written_.emplace_back(tensor, dense);
  return dense;
}

at::Tensor DenseCopies::parameter(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor;
  at::Tensor dense = tensor.contiguous();
  written_.emplace_back(tensor, dense);
  return dense;
}

void DenseCopies::write_back() {
  for (const auto& [tensor, dense] : written_) tensor.copy_(dense);
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

void Batches::add(
    const at::Tensor& parameter,
    std::int64_t step,
    const at::Tensor& first,
    const at::Tensor& second,
    const at::Tensor& largest,
    std::function<double()> count) {
  if (parameter.numel() == 0) return;
  const at::Tensor dense = dense_.parameter(as_real(parameter));
  Batch& batch = batch_for(dense, step);
  if (!batch.count) batch.count = std::move(count);
  batch.parameters.push_back(dense);
  batch.gradients.push_back(
      DenseCopies::input(as_real(parameter.grad()), dense));
  const auto add_state = [&](std::vector<at::Tensor>& list,
                             const at::Tensor& state) {
    if (state.defined()) list.push_back(dense_.output(as_real(state), dense));
  };
  add_state(batch.first, first);
  add_state(batch.second, second);
  add_state(batch.largest, largest);
}

void Batches::run(
    const at::Tensor& divisor,
    const std::function<
        void(const Batch& batch, const std::vector<at::Tensor>& steps)>&
        kernel) {
  for (Batch& batch : batches_) {
    if (divisor.defined()) batch.divisor = divisor.to(batch.device);
    auto count = static_cast<float>(batch.step);
    at::Tensor step = at::from_blob(&count, {}, at::kFloat);
    if (batch.count) {
      step = StepHooks::recording()->number(batch.device, batch.count);
    } else if (!batch.device.is_cpu()) {
      step = at::full({}, count, step.options().device(batch.device));
    }
    kernel(batch, std::vector<at::Tensor>(batch.parameters.size(), step));
  }
  dense_.write_back();
}

Batch& Batches::batch_for(const at::Tensor& parameter, std::int64_t step) {
  const auto found = std::ranges::find_if(batches_, [&](const Batch& batch) {
    return batch.step == step && batch.dtype == parameter.scalar_type() &&
        batch.device == parameter.device();
  });
  if (found != batches_.end()) return *found;
  return batches_.emplace_back(Batch{
      .dtype = parameter.scalar_type(),
      .device = parameter.device(),
      .step = step});
}

}  // namespace accelerate::detail
