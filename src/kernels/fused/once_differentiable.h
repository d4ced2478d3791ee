#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

namespace accelerate::detail {

/// Returns a gradient that refuses to be differentiated, by name, if it is
/// recorded (`create_graph`); without recording, `gradient` itself. `inputs`:
/// what the gradient depends on.
at::Tensor once_differentiable(
    const at::Tensor& gradient,
    const torch::autograd::variable_list& inputs,
    std::string_view function);

}  // namespace accelerate::detail
