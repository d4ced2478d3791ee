#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

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

/// The norm to compute, and the tensors to add.
struct Norm {
  std::string_view function;
  bool centers = false;
  double epsilon = 0;
};

const DeviceKernel*
find_norm(const at::Tensor& input, bool centers, const char* entry) {
  const char* const value = detail::kernel_value(input.scalar_type());
  // Matches add_norm.cu: rows are whole vectors, at most four per thread.
  const std::int64_t vector =
      16 / static_cast<std::int64_t>(input.element_size());
  if (value == nullptr || input.numel() == 0 || input.size(-1) % vector != 0 ||
      input.size(-1) > 4 * 256 * vector || !detail::has_plain_memory(input)) {
    return nullptr;
  }
  return detail::find_kernel(
      input.device(),
      {"add_norm",
       {format("VALUE={}", value), centers ? "CENTERS=true" : "CENTERS=false"}},
      entry);
}

// Contiguous, at an address that is a multiple of 16.
at::Tensor as_vectors(const at::Tensor& tensor) {
  at::Tensor made = tensor.contiguous();
  return reinterpret_cast<std::uintptr_t>(made.const_data_ptr()) % 16 == 0
      ? made
      : made.clone();
}

const float* floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

/// The rows of an input, for which there are kernels.
struct FusedAddNorm : torch::autograd::Function<FusedAddNorm> {
  // `weight` and `bias`: in fp32.
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& residual,
      const std::optional<at::Tensor>& weight,
      const std::optional<at::Tensor>& bias,
      Norm norm) {
    const std::int64_t columns = input.size(-1);
    const std::int64_t rows = input.numel() / columns;
    const at::Tensor sum = at::empty_like(input);
    const at::Tensor normalized = at::empty_like(input);
    const at::Tensor means =
        at::empty({rows}, input.options().dtype(at::kFloat));
    const at::Tensor scales = at::empty_like(means);
    find_norm(input, norm.centers, "add_norm_forward")
        ->launch(
            detail::num_blocks_for(input.device(), rows),
            input.const_data_ptr(),
            residual.const_data_ptr(),
            floats(weight.value_or(at::Tensor())),
            floats(bias.value_or(at::Tensor())),
            rows,
            columns,
            static_cast<float>(norm.epsilon),
            sum.mutable_data_ptr(),
            normalized.mutable_data_ptr(),
            means.mutable_data_ptr<float>(),
            scales.mutable_data_ptr<float>());
    context->save_for_backward(
        {sum, means, scales, weight.value_or(at::Tensor())});
    context->saved_data["centers"] = norm.centers;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["function"] = std::string(norm.function);
    context->set_materialize_grads(false);
    return {normalized, sum};
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    if (!gradients[0].defined())
      return {gradients[1], gradients[1], {}, {}, {}};
    at::Tensor of_sum, of_weight, of_bias;
    {
      const at::NoGradGuard no_grad;
      std::tie(of_sum, of_weight, of_bias) =
          computed(context, saved, gradients);
    }
    const std::string& function = context->saved_data["function"].toStringRef();
    const variable_list inputs{gradients[0], gradients[1], saved[0], saved[3]};
    const auto once = [&](const at::Tensor& gradient) {
      return detail::once_differentiable(gradient, inputs, function);
    };
    const at::Tensor recorded = once(of_sum);
    return {recorded, recorded, once(of_weight), once(of_bias), {}};
  }

 private:
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> computed(
      AutogradContext* context,
      const variable_list& saved,
      const variable_list& gradients) {
    const at::Tensor& sum = saved[0];
    const at::Tensor incoming = as_vectors(gradients[0]);
    const at::Tensor of_sum =
        gradients[1].defined() ? as_vectors(gradients[1]) : at::Tensor();
    const std::int64_t columns = sum.size(-1);
    const std::int64_t rows = sum.numel() / columns;
    const std::int64_t blocks = detail::num_blocks_for(sum.device(), rows);
    const at::Tensor made = at::empty_like(sum);
    // Autograd counts only the parameters that are defined.
    const bool has_weight = saved[3].defined();
    const auto partial = [&](bool exists, std::size_t input) {
      return exists && context->needs_input_grad(input)
          ? at::empty({blocks, columns}, sum.options().dtype(at::kFloat))
          : at::Tensor();
    };
    const at::Tensor of_weight = partial(has_weight, 2);
    const at::Tensor of_bias =
        partial(context->saved_data["has_bias"].toBool(), has_weight ? 3 : 2);
    const auto data = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
    };
    find_norm(sum, context->saved_data["centers"].toBool(), "add_norm_backward")
        ->launch(
            blocks,
            sum.const_data_ptr(),
            incoming.const_data_ptr(),
            of_sum.defined() ? of_sum.const_data_ptr() : nullptr,
            floats(saved[3]),
            floats(saved[1]),
            floats(saved[2]),
            rows,
            columns,
            made.mutable_data_ptr(),
            data(of_weight),
            data(of_bias));
    const auto total = [](const at::Tensor& partials) {
      return partials.defined() ? partials.sum(0) : partials;
    };
    return {made, total(of_weight), total(of_bias)};
  }
};

at::Tensor norm_by_operators(
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const Norm& norm) {
  const auto apply = [&](const at::Tensor& values) {
    const at::IntArrayRef shape =
        values.sizes().slice(static_cast<std::size_t>(values.dim() - 1));
    if (norm.centers)
      return at::layer_norm(values, shape, weight, bias, norm.epsilon);
    return at::rms_norm(
        values,
        shape,
        weight.defined() ? std::optional(weight) : std::nullopt,
        norm.epsilon);
  };
  const bool is_mixed =
      (weight.defined() && weight.scalar_type() != sum.scalar_type()) ||
      (bias.defined() && bias.scalar_type() != sum.scalar_type());
  // LibTorch's LayerNorm for CPUs takes such weights itself.
  if (!is_mixed ||
      (norm.centers && sum.is_cpu() && weight.defined() && bias.defined() &&
       weight.scalar_type() == bias.scalar_type())) {
    return apply(sum);
  }
  return apply(sum.to(at::kFloat)).to(sum.scalar_type());
}

std::optional<at::Tensor> in_fp32(const at::Tensor& parameter) {
  if (!parameter.defined()) return std::nullopt;
  return parameter.to(at::kFloat).contiguous();
}

bool has_plain(const std::optional<at::Tensor>& tensor) {
  return !tensor || detail::has_plain_memory(*tensor);
}

NormalizedSum add_norm(
    const at::Tensor& input,
    const at::Tensor& residual,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const Norm& norm) {
  std::string complaints = detail::complain_about_input("input", input) +
      detail::complain_about_input("residual", residual);
  if (complaints.empty()) {
    if (residual.sizes() != input.sizes() ||
        residual.scalar_type() != input.scalar_type() ||
        residual.device() != input.device()) {
      complaints = format(
          "residual must be {} of shape {} on {}, as the input is, but is {} "
          "of shape {} on {}; ",
          c10::toString(input.scalar_type()),
          input.sizes(),
          input.device(),
          c10::toString(residual.scalar_type()),
          residual.sizes(),
          residual.device());
    }
    complaints += detail::complain_about_parameter("weight", weight, input);
    complaints += detail::complain_about_parameter("bias", bias, input);
  }
  if (!(norm.epsilon >= 0))
    complaints +=
        format("epsilon must be at least 0, but is {}; ", norm.epsilon);
  detail::throw_complaints(norm.function, complaints);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  if (detail::may_have_kernels(input.device())) {
    const auto own_weight = in_fp32(weight), own_bias = in_fp32(bias);
    if (has_plain(own_weight) && has_plain(own_bias) &&
        detail::has_plain_memory(residual) &&
        find_norm(input, norm.centers, "add_norm_forward") != nullptr &&
        find_norm(input, norm.centers, "add_norm_backward") != nullptr) {
      const variable_list made = FusedAddNorm::apply(
          as_vectors(input), as_vectors(residual), own_weight, own_bias, norm);
      return {made[0], made[1]};
    }
  }
  const at::Tensor sum = input + residual;
  return {norm_by_operators(sum, weight, bias, norm), sum};
}

}  // namespace

NormalizedSum fused_add_layer_norm(
    const at::Tensor& input,
    const at::Tensor& residual,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double epsilon) {
  return add_norm(
      input,
      residual,
      weight,
      bias,
      {"fused_add_layer_norm", /*centers=*/true, epsilon});
}

NormalizedSum fused_add_rms_norm(
    const at::Tensor& input,
    const at::Tensor& residual,
    const at::Tensor& weight,
    double epsilon) {
  return add_norm(
      input,
      residual,
      weight,
      {},
      {"fused_add_rms_norm", /*centers=*/false, epsilon});
}

}  // namespace accelerate
