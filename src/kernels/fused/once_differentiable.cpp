#include "kernels/fused/once_differentiable.h"

#include <algorithm>
#include <string>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RefusedGradient : torch::autograd::Function<RefusedGradient> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& gradient,
      const at::Tensor&,
      const std::string& function) {
    context->saved_data["function"] = function;
    return gradient.view_as(gradient);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list&) {
    throw ConfigError(format(
        "[kernels] the gradients of {}() must be differentiated no further, "
        "but a backward with create_graph was differentiated; use LibTorch's "
        "operators there",
        context->saved_data["function"].toStringRef()));
  }
};

}  // namespace

at::Tensor once_differentiable(
    const at::Tensor& gradient,
    const variable_list& inputs,
    std::string_view function) {
  const auto is_recorded = [](const at::Tensor& input) {
    return input.defined() && input.requires_grad();
  };
  if (!gradient.defined() || !at::GradMode::is_enabled()) return gradient;
  const auto recorded = std::ranges::find_if(inputs, is_recorded);
  if (recorded == inputs.end()) return gradient;
  return RefusedGradient::apply(gradient, *recorded, std::string(function));
}

}  // namespace accelerate::detail
