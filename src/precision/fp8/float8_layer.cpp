#include "precision/fp8/float8_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Way = Float8Multiplier::Way;

RoundingSeed new_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random();
}

std::uint32_t matrix_version(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

constexpr std::string_view name_of(Float8Layer::Product product) {
  switch (product) {
    case Float8Layer::forward:
      return "the forward product";
    case Float8Layer::grad_input:
      return "the gradient of the input";
    case Float8Layer::grad_weight:
      return "the gradient of the weight";
  }
  return "";
}

}  // namespace

bool Float8Rules::is_same_cast(
    const std::optional<DynamicCast>& a,
    const std::optional<DynamicCast>& b) const {
  if (!a || !b) return false;
  return delayed.has_value() ||
      (*a == *b && a->granularity == Float8Granularity::tensorwise);
}

at::Tensor DelayedTensor::scale_on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  if (!on_device_.defined() || on_device_.device() != device) {
    on_device_ = at::full(
        {},
        scale_.scale(),
        at::TensorOptions().dtype(at::kFloat).device(device));
  }
  return on_device_;
}

void DelayedTensor::note(const at::Tensor& amax) {
  const std::lock_guard lock(mutex_);
  if (!amax.is_cpu()) {
    pending_on_device_ = pending_on_device_.defined()
        ? at::maximum(pending_on_device_, amax)
        : amax;
    return;
  }
  const auto value = amax.item<float>();
  pending_ = std::max(
      pending_,
      std::isnan(value) ? std::numeric_limits<float>::infinity() : value);
}

std::pair<float, at::Tensor> DelayedTensor::take_amax() {
  const std::lock_guard lock(mutex_);
  return {
      std::exchange(pending_, 0.0F),
      std::exchange(pending_on_device_, at::Tensor())};
}

void DelayedTensor::update(float amax) {
  const std::lock_guard lock(mutex_);
  scale_.update(amax);
  if (!is_given_) on_device_.reset();
}

void DelayedTensor::use(at::Tensor scale_on_device) {
  const std::lock_guard lock(mutex_);
  on_device_ = std::move(scale_on_device);
  is_given_ = true;
}

void DelayedTensor::restore(
    float scale,
    const std::vector<float>& history,
    std::int64_t num_updates) {
  const std::lock_guard lock(mutex_);
  scale_.restore(scale, history, num_updates);
  on_device_.reset();
  is_given_ = false;
}

Float8Layer::Float8Layer(std::string layer_name, const Float8Rules& layer_rules)
    : name(std::move(layer_name)), rules(layer_rules) {
  for (auto& way : ways) way = Way::emulation;
  if (!rules.delayed) return;
  const auto add = [&](const std::optional<DynamicCast>& first,
                       const std::optional<DynamicCast>& second) {
    const DynamicCast cast = first ? *first : second.value_or(DynamicCast{});
    delayed.push_back(std::make_unique<DelayedTensor>(
        float8_format(cast.dtype), *rules.delayed));
  };
  add(rules.input, rules.input_for_grad_weight);
  add(rules.weight, rules.weight_for_grad_input);
  add(rules.grad_output, rules.grad_output_for_grad_weight);
}

void Float8Layer::probe(c10::Device device) {
  const auto probe_one = [&](Product product,
                             const std::optional<DynamicCast>& a,
                             const std::optional<DynamicCast>& b) {
    if (a && b) ways[product] = probe_multiplication(device, *a, *b);
  };
  probe_one(forward, rules.input, rules.weight);
  probe_one(grad_input, rules.grad_output, rules.weight_for_grad_input);
  probe_one(
      grad_weight,
      rules.grad_output_for_grad_weight,
      rules.input_for_grad_weight);
}

MeasuredMatrix Float8Layer::cast(
    const at::Tensor& matrix,
    const DynamicCast& how,
    std::int64_t dim,
    Role role,
    const OperandUse& use) const {
  const RoundingSeed seed =
      role == grad_output && rules.rounds_gradients_randomly ? new_seed()
                                                             : std::nullopt;
  if (role == weight && gathered_scale && gathered_scale->defined()) {
    const at::Tensor scale = gathered_scale->to(matrix.device());
    return {
        cast_with_scale(
            matrix, how.dtype, scale, std::nullopt, use.also_transposed),
        {}};
  }
  if (delayed.empty()) {
    std::vector<MatrixDivision> all = divisions[role];
    if (use.of_positions && role != weight)
      all.push_back({0, agree_on_positions});
    return {
        cast_with_others(matrix, how, dim, all, seed, use.also_transposed), {}};
  }
  return cast_and_measure(
      matrix,
      how.dtype,
      delayed[role]->scale_on(matrix.device()),
      seed,
      use.also_transposed);
}

MeasuredMatrix Float8Layer::cast_weight(
    const at::Tensor& matrix,
    const DynamicCast& how,
    std::int64_t dim,
    bool also_transposed) {
  const OperandUse use{.also_transposed = also_transposed};
  if (!keeps_weight) return cast(matrix, how, dim, weight, use);
  const std::lock_guard lock(mutex_);
  const std::uint32_t version = matrix_version(matrix);
  const void* const data = matrix.const_data_ptr();
  std::erase_if(kept_weights_, [&](const KeptWeight& kept) {
    return kept.version != version || kept.data != data ||
        kept.sizes != matrix.sizes().vec();
  });
  for (const KeptWeight& kept : kept_weights_) {
    if (rules.is_same_cast(kept.how, how) ||
        (kept.how == how && kept.dim == dim)) {
      return kept.cast;
    }
  }
  kept_weights_.push_back(
      {how,
       dim,
       data,
       version,
       matrix.sizes().vec(),
       cast(matrix, how, dim, weight, use)});
  return kept_weights_.back().cast;
}

void Float8Layer::forget_weight() {
  const std::lock_guard lock(mutex_);
  kept_weights_.clear();
}

void Float8Layer::note(Role role, const at::Tensor& amax) const {
  if (amax.defined() && !delayed.empty()) delayed[role]->note(amax);
}

at::Tensor Float8Layer::multiply(
    Product product,
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype) {
  const Way way = ways[product];
  if (way == Way::emulation)
    return detail::multiply(a, b, dtype, {way, rules.pads});
  try {
    return detail::multiply(a, b, dtype, {way, rules.pads});
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    // The small product of the same types did not reveal this failure.
    if (ways[product].exchange(Way::emulation) != Way::emulation && warn) {
      warn(format(
          "layer \"{}\": {} of {} times {} is emulated from now on, since the "
          "device cannot multiply it: {}",
          name,
          name_of(product),
          a.values.sizes(),
          b.values.t().sizes(),
          error.what_without_backtrace()));
    }
    return detail::multiply(a, b, dtype, {Way::emulation, rules.pads});
  }
}

at::Tensor take_amaxes(const Float8Layers& layers, c10::Device device) {
  std::vector<float> on_host;
  std::vector<at::Tensor> on_device;
  for (const auto& layer : layers) {
    for (const auto& tensor : layer->delayed) {
      auto [host, other] = tensor->take_amax();
      on_host.push_back(host);
      on_device.push_back(std::move(other));
    }
  }
  constexpr auto kRoles = static_cast<std::int64_t>(Float8Layer::kNumRoles);
  at::Tensor taken = at::tensor(on_host, at::kFloat).to(device);
  const auto is_defined = [](const at::Tensor& amax) { return amax.defined(); };
  const auto first = std::ranges::find_if(on_device, is_defined);
  if (first != on_device.end()) {
    const at::Tensor none = at::zeros_like(*first);
    for (at::Tensor& amax : on_device)
      if (!amax.defined()) amax = none;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    taken = at::maximum(
        taken,
        at::nan_to_num(at::stack(on_device), kInfinity, kInfinity).to(device));
  }
  return taken.view({-1, kRoles});
}

}  // namespace accelerate::detail
