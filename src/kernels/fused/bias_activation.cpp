#include <cstdint>
#include <string>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/fused.h>

#include "base/text/text.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fused/layer_arguments.h"
#include "kernels/fused/loss_arguments.h"
#include "kernels/fused/once_differentiable.h"

namespace accelerate {

namespace {

using detail::DeviceKernel;
using detail::format;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kActivationName = "fused_bias_activation";

at::Tensor activated(const at::Tensor& values, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return at::gelu(values);
    case Activation::gelu_tanh:
      return at::gelu(values, "tanh");
    case Activation::silu:
      return at::silu(values);
    case Activation::relu:
      return at::relu(values);
  }
  return {};
}

const char* macro_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "ACTIVATION=Gelu";
    case Activation::gelu_tanh:
      return "ACTIVATION=GeluTanh";
    case Activation::silu:
      return "ACTIVATION=Silu";
    case Activation::relu:
      return "ACTIVATION=Relu";
  }
  return "";
}

const DeviceKernel* find_activation(
    const at::Tensor& input,
    Activation activation) {
  if (input.numel() == 0 || !detail::has_plain_memory(input)) return nullptr;
  const char* const value = detail::kernel_value(input.scalar_type());
  if (value == nullptr) return nullptr;
  return detail::find_kernel(
      input.device(),
      {"bias_activation", {format("VALUE={}", value), macro_of(activation)}},
      "bias_activation");
}

// `gradients`: undefined for the activation itself.
at::Tensor run_activation(
    const DeviceKernel& kernel,
    const at::Tensor& input,
    const at::Tensor& bias,
    const at::Tensor& gradients) {
  at::Tensor made = at::empty_like(input);
  constexpr std::int64_t kValuesOfBlock = 256 * 8;
  kernel.launch(
      detail::num_blocks_for(
          input.device(),
          (input.numel() + kValuesOfBlock - 1) / kValuesOfBlock),
      input.const_data_ptr(),
      bias.const_data_ptr(),
      gradients.defined() ? gradients.const_data_ptr() : nullptr,
      input.numel(),
      input.size(-1),
      made.mutable_data_ptr());
  return made;
}

/// Takes a contiguous input, and a bias of its dtype.
struct FusedBiasActivation : torch::autograd::Function<FusedBiasActivation> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& bias,
      Activation activation) {
    context->save_for_backward({input, bias});
    context->saved_data["activation"] = static_cast<std::int64_t>(activation);
    return run_activation(*find_activation(input, activation), input, bias, {});
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto activation =
        static_cast<Activation>(context->saved_data["activation"].toInt());
    at::Tensor of_input, of_bias;
    {
      const at::NoGradGuard no_grad;
      of_input = run_activation(
          *find_activation(saved[0], activation),
          saved[0],
          saved[1],
          gradients[0].contiguous());
      if (context->needs_input_grad(1))
        of_bias = of_input.reshape({-1, saved[1].size(0)}).sum(0);
    }
    const variable_list inputs{gradients[0], saved[0], saved[1]};
    return {
        detail::once_differentiable(of_input, inputs, kActivationName),
        detail::once_differentiable(of_bias, inputs, kActivationName),
        {}};
  }
};

}  // namespace

at::Tensor fused_bias_activation(
    const at::Tensor& input,
    const at::Tensor& bias,
    Activation activation) {
  std::string complaints = detail::complain_about_input("input", input);
  if (!bias.defined()) {
    complaints += "bias must be defined, but is not; ";
  } else if (complaints.empty()) {
    complaints = detail::complain_about_parameter("bias", bias, input);
  }
  detail::throw_complaints(kActivationName, complaints);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const at::Tensor own_bias = bias.to(input.scalar_type());
  if (detail::may_have_kernels(input.device()) &&
      detail::has_plain_memory(own_bias) &&
      find_activation(input, activation) != nullptr) {
    return FusedBiasActivation::apply(
        input.contiguous(), own_bias.contiguous(), activation);
  }
  return activated(input + own_bias, activation);
}

}  // namespace accelerate
