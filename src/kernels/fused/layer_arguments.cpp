#include "kernels/fused/layer_arguments.h"

#include "base/text/text.h"
#include "kernels/fused/loss_arguments.h"

namespace accelerate::detail {

std::string complain_about_input(
    std::string_view name,
    const at::Tensor& input) {
  if (!input.defined()) return format("{} must be defined, but is not; ", name);
  std::string complaints = complain_about_dtype(name, input);
  if (input.dim() == 0)
    complaints += format("{} must have features, but is a scalar; ", name);
  return complaints;
}

std::string complain_about_parameter(
    std::string_view name,
    const at::Tensor& parameter,
    const at::Tensor& input) {
  if (!parameter.defined()) return "";
  std::string complaints;
  if (parameter.sizes() != at::IntArrayRef({input.size(-1)})) {
    complaints += format(
        "{} must have shape [{}], but is of shape {}; ",
        name,
        input.size(-1),
        parameter.sizes());
  }
  const bool is_fp32_beside_less = parameter.scalar_type() == at::kFloat &&
      (input.scalar_type() == at::kBFloat16 ||
       input.scalar_type() == at::kHalf);
  if (parameter.scalar_type() != input.scalar_type() && !is_fp32_beside_less) {
    complaints += format(
        "{} must be {}, as the input is, but is {}; ",
        name,
        c10::toString(input.scalar_type()),
        c10::toString(parameter.scalar_type()));
  }
  if (parameter.device() != input.device()) {
    complaints += format(
        "{} must be on {}, but is on {}; ",
        name,
        input.device(),
        parameter.device());
  }
  return complaints;
}

}  // namespace accelerate::detail
