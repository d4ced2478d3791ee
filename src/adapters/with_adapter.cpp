// Computes what an adapter adds to the result of its layer, by PEFT's formulas
// in PEFT's order of operations.
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "adapters/layer_call.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Indices of a convolution's arguments.
constexpr std::size_t kInput = 0, kWeight = 1, kBias = 2, kGroups = 6;

// The adapter's input, on the device and in the dtype of its matrices, unless
// autocast casts it anyway.
at::Tensor adapter_input(
    const LayerCall& call,
    const at::Tensor& result,
    const LayerAdapter& adapter) {
  at::Tensor x = call.input.device() == result.device()
      ? call.input
      : call.input.to(result.device());
  const bool is_cast_later =
      at::autocast::is_autocast_enabled(x.device().type()) && !adapter.drops();
  if (x.scalar_type() != adapter.a.scalar_type() && !is_cast_later)
    x = x.to(adapter.a.scalar_type());
  if (!adapter.drops()) return x;
  return call.division != nullptr && call.division->drop
      ? call.division->drop(x, adapter.dropout)
      : at::dropout(x, adapter.dropout, /*train=*/true);
}

at::Tensor convolved(
    const LayerCall& call,
    const at::Tensor& input,
    const at::Tensor& weight,
    std::optional<std::int64_t> groups) {
  std::vector<c10::IValue> stack = call.arguments;
  stack[kInput] = input;
  stack[kWeight] = weight;
  stack[kBias] = c10::IValue();
  if (groups) stack[kGroups] = *groups;
  call.operation.callBoxed(stack);
  return stack.front().toTensor();
}

// A convolution of size 1 over all dimensions.
at::Tensor convolved_at_points(
    const at::Tensor& input,
    const at::Tensor& weight,
    std::int64_t groups) {
  const std::int64_t one = 1, zero = 0;
  const at::IntArrayRef ones = one, none = zero;
  switch (weight.dim()) {
    case 3:
      return at::conv1d(input, weight, {}, ones, none, ones, groups);
    case 4:
      return at::conv2d(input, weight, {}, ones, none, ones, groups);
    default:
      return at::conv3d(input, weight, {}, ones, none, ones, groups);
  }
}

// The exchange between the two matrices, for layers that ranks divide.
at::Tensor passed(const LayerCall& call, at::Tensor between) {
  return call.division != nullptr && call.division->pass
      ? call.division->pass(between)
      : std::move(between);
}

at::Tensor low_rank_result(
    const LayerCall& call,
    const at::Tensor& x,
    const LayerAdapter& adapter) {
  switch (call.kind) {
    case LayerKind::linear:
    case LayerKind::transposed_linear:
      return at::linear(passed(call, at::linear(x, adapter.a)), adapter.b);
    case LayerKind::embedding:
      return at::matmul(
          at::embedding(
              adapter.a.t(),
              x,
              call.arguments[2].toInt(),
              call.arguments[3].toBool(),
              call.arguments[4].toBool()),
          adapter.b.t());
    case LayerKind::convolution:
      break;
  }
  const std::int64_t groups = call.arguments[kGroups].toInt();
  if (adapter.b.size(1) * groups != adapter.a.size(0)) {
    throw ConfigError(format(
        "[adapters] the groups of a convolution with adapters must be {} if it "
        "is in an exported program, but are {}: leave it out (exclude_modules)",
        adapter.a.size(0) / adapter.b.size(1),
        groups));
  }
  return convolved_at_points(
      convolved(call, x, adapter.a, 1), adapter.b, groups);
}

// DoRA's factors of the outputs. Their norms get no gradients (section 4.3 of
// the paper).
at::Tensor output_factors(
    const LayerCall& call,
    const at::Tensor& result,
    const LayerAdapter& adapter) {
  at::Tensor norms;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor product =
        adapter_product(adapter, call.kind, call.weight.sizes());
    norms = weight_norms(
        at::add(
            call.weight.to(product.scalar_type()), product * adapter.scaling),
        call.kind);
  }
  const at::Tensor factors = adapter.magnitude / norms;
  const bool is_single =
      call.kind == LayerKind::convolution && result.dim() < call.weight.dim();
  return is_single ? factors.squeeze(0) : factors;
}

// The layer's result, without its bias, for the adapter's input.
at::Tensor base_result(
    const LayerCall& call,
    const at::Tensor& x,
    const at::Tensor& result,
    const LayerAdapter& adapter) {
  if (adapter.drops()) {
    const at::Tensor weight = call.weight.to(x.scalar_type());
    if (call.kind == LayerKind::convolution)
      return convolved(call, x, weight, std::nullopt);
    return at::linear(x, call.kind == LayerKind::linear ? weight : weight.t());
  }
  if (!call.bias.defined()) return result;
  if (call.kind != LayerKind::convolution) return result - call.bias;
  std::vector<std::int64_t> sizes(call.weight.sizes().size() - 1, 1);
  sizes[0] = -1;
  return result - call.bias.view(sizes);
}

}  // namespace

at::Tensor with_adapter(
    const LayerCall& call,
    const at::Tensor& result,
    const LayerAdapter& adapter) {
  if (call.kind == LayerKind::embedding) {
    const at::Tensor indices = call.input.device() == result.device()
        ? call.input
        : call.input.to(result.device());
    const at::Tensor product = low_rank_result(call, indices, adapter);
    if (!adapter.magnitude.defined()) return result + product * adapter.scaling;
    const at::Tensor factors = output_factors(call, result, adapter);
    return factors * result + factors * product * adapter.scaling;
  }
  const at::Tensor x = adapter_input(call, result, adapter);
  const at::Tensor product = low_rank_result(call, x, adapter);
  if (!adapter.magnitude.defined()) return result + product * adapter.scaling;
  const at::Tensor factors = output_factors(call, result, adapter);
  return result +
      ((factors - 1) * base_result(call, x, result, adapter) +
       factors * product * adapter.scaling);
}

}  // namespace accelerate::detail
