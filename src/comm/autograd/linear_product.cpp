#include "comm/autograd/linear_product.h"

#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The data that the nodes of one product share.
struct ProductCall : torch::CustomClassHolder {
  explicit ProductCall(at::Tensor matrix) : weight(std::move(matrix)) {}

  at::Tensor weight;
  bool has_bias = false;
  /// Set by the product's backward for the weight's node.
  at::Tensor gradient;
  at::Tensor input;
};

at::Tensor weight_gradient(
    const at::Tensor& gradient,
    const at::Tensor& input) {
  const auto as_matrix = [](const at::Tensor& tensor) {
    return tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor.flatten(0, -2);
  };
  return at::mm(as_matrix(gradient).t(), as_matrix(input));
}

/// The gradient of the weight. Autograd runs it after the product's backward,
/// which passes it no values.
struct WeightNode : torch::autograd::Function<WeightNode> {
  // Returns an empty tensor that connects the product's node to this one.
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& weight,
      const c10::intrusive_ptr<ProductCall>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return at::empty({0}, weight.options());
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& /*gradients*/) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const auto call = c10::static_intrusive_pointer_cast<ProductCall>(
        context->saved_data["call"].toCapsule());
    const at::Tensor gradient = std::exchange(call->gradient, at::Tensor());
    const at::Tensor input = std::exchange(call->input, at::Tensor());
    return {weight_gradient(gradient, input), at::Tensor()};
  }
};

struct ProductNode : torch::autograd::Function<ProductNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& /*link*/,
      const std::optional<at::Tensor>& bias,
      const c10::intrusive_ptr<ProductCall>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    const at::Tensor weight = std::exchange(call->weight, at::Tensor());
    context->save_for_backward({input, weight});
    call->has_bias = bias.has_value();
    const at::Tensor result = at::linear(input, weight, bias);
    // A view that a Function made could not be changed in place.
    return result.is_view() ? at::_unsafe_view(result, result.sizes()) : result;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const auto call = c10::static_intrusive_pointer_cast<ProductCall>(
        context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients.front();
    variable_list result(4);
    if (context->needs_input_grad(0))
      result[0] = at::matmul(gradient, saved[1]);
    if (context->needs_input_grad(1)) {
      call->gradient = gradient;
      call->input = saved[0];
    }
    if (call->has_bias && context->needs_input_grad(2)) {
      result[2] =
          gradient.dim() > 1 ? gradient.flatten(0, -2).sum(0) : gradient;
    }
    return result;
  }
};

}  // namespace

at::Tensor as_autocast_product(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device)
      ? at::autocast::cached_cast(
            at::autocast::get_autocast_dtype(device), tensor, device)
      : tensor;
}

at::Tensor linear_product(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  RegionEntrance entrance =
      RegionEntrance::as_it_is(as_autocast_product(input));
  return linear_product(entrance, weight, bias);
}

at::Tensor linear_product(
    RegionEntrance& input,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const at::Tensor matrix = as_autocast_product(weight);
  const std::optional<at::Tensor> summand =
      bias.defined() ? std::optional(as_autocast_product(bias)) : std::nullopt;
  if (!at::GradMode::is_enabled() || !matrix.requires_grad())
    return at::linear(input.enter(), matrix, summand);
  const auto call = c10::make_intrusive<ProductCall>(matrix);
  const at::Tensor link = WeightNode::apply(matrix, call);
  link.grad_fn()->set_sequence_nr(input.between());
  return ProductNode::apply(
      as_autocast_product(input.enter()), link, summand, call);
}

}  // namespace accelerate::detail
