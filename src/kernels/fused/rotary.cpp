#include <cstdint>
#include <string>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/fused.h>

#include "base/text/text.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fused/layer_arguments.h"
#include "kernels/fused/loss_arguments.h"

namespace accelerate {

namespace {

using detail::format;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kRotaryName = "rotary_embedding";

/// How pairs are rotated.
struct Rotation {
  bool interleaved = false;
  /// Backwards, as the gradient is.
  bool is_inverse = false;
};

// The first or second of each pair, as a view.
at::Tensor
half_of(const at::Tensor& values, bool interleaved, std::int64_t which) {
  const std::int64_t half = values.size(-1) / 2;
  return interleaved ? values.unflatten(-1, {half, 2}).select(-1, which)
                     : values.narrow(-1, which * half, half);
}

at::Tensor rotated(
    const at::Tensor& input,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    Rotation rotation) {
  at::Tensor made = at::empty(input.sizes(), input.options());
  const char* const value = detail::kernel_value(input.scalar_type());
  const auto* kernel =
      value == nullptr || input.numel() == 0 || !detail::has_plain_memory(input)
      ? nullptr
      : detail::find_kernel(
            input.device(), {"rotary", {format("VALUE={}", value)}}, "rotary");
  const double direction = rotation.is_inverse ? -1 : 1;
  if (kernel != nullptr) {
    const at::Tensor source = input.contiguous();
    constexpr std::int64_t kThreads = 256;
    kernel->launch(
        detail::num_blocks_for(
            input.device(), (input.numel() / 2 + kThreads - 1) / kThreads),
        source.const_data_ptr(),
        cosines.const_data_ptr<float>(),
        sines.const_data_ptr<float>(),
        input.numel() / input.size(-1),
        input.size(-1),
        input.size(-2),
        static_cast<int>(rotation.interleaved),
        static_cast<float>(direction),
        made.mutable_data_ptr());
    return made;
  }
  const at::Tensor a = half_of(input, rotation.interleaved, 0);
  const at::Tensor b = half_of(input, rotation.interleaved, 1);
  at::Tensor first = half_of(made, rotation.interleaved, 0);
  at::Tensor second = half_of(made, rotation.interleaved, 1);
  at::mul_out(first, a, cosines).addcmul_(b, sines, -direction);
  at::mul_out(second, b, cosines).addcmul_(a, sines, direction);
  return made;
}

struct RotaryEmbedding : torch::autograd::Function<RotaryEmbedding> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& cosines,
      const at::Tensor& sines,
      Rotation rotation) {
    context->save_for_backward({cosines, sines});
    context->saved_data["interleaved"] = rotation.interleaved;
    context->saved_data["is_inverse"] = rotation.is_inverse;
    return rotated(input, cosines, sines, rotation);
  }

  // The gradient is the inverse rotation, which can be differentiated as well.
  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Rotation inverse{
        context->saved_data["interleaved"].toBool(),
        !context->saved_data["is_inverse"].toBool()};
    return {
        RotaryEmbedding::apply(gradients[0], saved[0], saved[1], inverse),
        {},
        {},
        {}};
  }
};

std::string complain_about_angles(
    std::string_view name,
    const at::Tensor& angles,
    const at::Tensor& input) {
  if (!angles.defined())
    return format("{} must be defined, but is not; ", name);
  std::string complaints;
  const at::ScalarType dtype =
      input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (angles.sizes() != at::IntArrayRef({input.size(-2), input.size(-1) / 2})) {
    complaints += format(
        "{} must have shape [{}, {}], but is of shape {}; ",
        name,
        input.size(-2),
        input.size(-1) / 2,
        angles.sizes());
  }
  if (angles.scalar_type() != dtype) {
    complaints += format(
        "{} must be {}, but is {}; ",
        name,
        c10::toString(dtype),
        c10::toString(angles.scalar_type()));
  }
  if (angles.device() != input.device()) {
    complaints += format(
        "{} must be on {}, but is on {}; ",
        name,
        input.device(),
        angles.device());
  }
  return complaints;
}

}  // namespace

at::Tensor rotary_embedding(
    const at::Tensor& input,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool interleaved) {
  std::string complaints = detail::complain_about_input("input", input);
  if (complaints.empty() && (input.dim() < 2 || input.size(-1) % 2 != 0)) {
    complaints = format(
        "input must have shape [..., positions, an even number of features], "
        "but is of shape {}; ",
        input.sizes());
  }
  if (complaints.empty()) {
    complaints = complain_about_angles("cosines", cosines, input) +
        complain_about_angles("sines", sines, input);
  }
  detail::throw_complaints(kRotaryName, complaints);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  return RotaryEmbedding::apply(
      input,
      cosines.detach().contiguous(),
      sines.detach().contiguous(),
      Rotation{interleaved});
}

}  // namespace accelerate
