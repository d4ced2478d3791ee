#include "precision/fp8/float8_linear.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What cuBLAS wants of the sizes of operands.
constexpr std::int64_t kMultipleOfSizes = 16;

Float8Matrix transposed(const Float8Matrix& matrix) {
  return {
      matrix.values.t(),
      matrix.scale.dim() == 2 ? matrix.scale.t() : matrix.scale,
      matrix.block_dim ? std::optional(1 - *matrix.block_dim) : std::nullopt};
}

// Zeros at the ends of both dimensions; columns only unless `pads_rows`.
at::Tensor padded(const at::Tensor& values, bool pads_rows) {
  const auto missing = [&](std::int64_t dim) {
    return (kMultipleOfSizes - values.size(dim) % kMultipleOfSizes) %
        kMultipleOfSizes;
  };
  const std::int64_t rows = pads_rows ? missing(0) : 0;
  if (rows == 0 && missing(1) == 0) return values.contiguous();
  return at::constant_pad_nd(
             values.view(at::kByte).contiguous(), {0, missing(1), 0, rows})
      .view(values.scalar_type());
}

at::Tensor reciprocal_of(const at::Tensor& scale, std::int64_t rows) {
  const at::Tensor inverse = scale.reciprocal();
  if (scale.dim() == 0) return inverse;
  const std::int64_t missing = rows - inverse.size(0);
  return (missing == 0 ? inverse
                       : at::constant_pad_nd(inverse, {0, 0, 0, missing}, 1))
      .contiguous();
}

bool is_multiplied_by_device(
    const Float8Matrix& a,
    const Float8Matrix& b,
    Float8Multiplier multiplier) {
  if (multiplier == Float8Multiplier::emulation) return false;
  const bool has_device_sizes = a.values.size(1) % kMultipleOfSizes == 0 &&
      b.values.size(0) % kMultipleOfSizes == 0;
  if (multiplier == Float8Multiplier::device && !has_device_sizes) return false;
  const bool has_blocks = a.block_dim || b.block_dim;
  const bool are_both_wide = a.values.scalar_type() == at::kFloat8_e5m2 &&
      b.values.scalar_type() == at::kFloat8_e5m2;
  return !has_blocks && !are_both_wide && a.scale.dim() == b.scale.dim();
}

at::Tensor multiply_on_device(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype) {
  const at::Tensor left = padded(a.values, /*pads_rows=*/false);
  const at::Tensor right = padded(b.values, /*pads_rows=*/true);
  const bool is_axiswise = a.scale.dim() == 2;
  // Scales of rows go with results in bf16 only.
  const at::ScalarType made = is_axiswise ? at::kBFloat16 : dtype;
  const at::Tensor product = at::_scaled_mm(
      left,
      right.t(),
      reciprocal_of(a.scale, left.size(0)),
      is_axiswise ? reciprocal_of(b.scale, right.size(0)).t()
                  : reciprocal_of(b.scale, 1),
      /*bias=*/{},
      /*scale_result=*/{},
      made,
      /*use_fast_accum=*/is_axiswise);
  return product.narrow(1, 0, b.values.size(0)).to(dtype).contiguous();
}

// The operands of a layer's products.
struct Operands {
  Float8Matrix cast(
      const at::Tensor& matrix,
      const DynamicCast& how,
      std::int64_t dim,
      Float8Layer::Role role) const {
    const bool is_gradient = role == Float8Layer::grad_output;
    const bool is_random = is_gradient && layer.rules.rounds_gradients_randomly;
    if (!layer.delayed.empty()) {
      const float scale = layer.delayed[role]->use(amax_of(matrix));
      return cast_with_scale(
          matrix, how.dtype, scale, is_random ? new_seed() : std::nullopt);
    }
    if (!is_random || how.granularity != Float8Granularity::tensorwise)
      return cast_dynamically(matrix, how, dim);
    return cast_with_scale(
        matrix,
        how.dtype,
        scale_of_amax(
            amax_of(matrix), float8_format(how.dtype), how.power_of_2),
        new_seed());
  }

  static std::optional<std::uint32_t> new_seed() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return at::check_generator<at::CPUGeneratorImpl>(generator)->random();
  }

  const Float8Layer& layer;
};

// Float8 operands cannot be added up by autograd, and autocast has nothing to
// change in them.
struct BelowAutocast {
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

bool keeps_cast_input(const Float8Rules& rules) {
  if (!rules.input || !rules.input_for_grad_weight) return false;
  return rules.delayed.has_value() ||
      (*rules.input == *rules.input_for_grad_weight &&
       rules.input->granularity == Float8Granularity::tensorwise);
}

/// Multiplies matrices; returns no view, so that programs may change the result.
struct Float8LinearFunction : torch::autograd::Function<Float8LinearFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& transposed_weight,
      const c10::intrusive_ptr<Float8Layer>& layer,
      bool trains_weight) {
    const BelowAutocast guard;
    const Float8Rules& rules = layer->rules;
    const Operands operands{*layer};
    const at::Tensor weight = transposed_weight.t();
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);

    std::optional<Float8Matrix> cast_input;
    if (rules.input && (rules.weight || keeps_cast_input(rules)))
      cast_input = operands.cast(input, *rules.input, 1, Float8Layer::input);
    at::Tensor output;
    if (cast_input && rules.weight) {
      output = multiply(
          *cast_input,
          operands.cast(weight, *rules.weight, 1, Float8Layer::weight),
          input.scalar_type(),
          layer->multiplier);
    } else {
      output = at::mm(input, transposed_weight.to(input.scalar_type()));
    }
    const bool is_cast = keeps_cast_input(rules);
    context->saved_data["is_cast"] = is_cast;
    if (!trains_weight) {
      context->save_for_backward({transposed_weight});
    } else if (is_cast) {
      // As bytes, of which every operator knows something, such as those that
      // compare recomputed tensors.
      context->save_for_backward(
          {transposed_weight,
           cast_input->values.view(at::kByte),
           cast_input->scale});
    } else {
      context->save_for_backward({transposed_weight, input});
    }
    return output;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& grads) {
    const at::NoGradGuard no_grad;
    const BelowAutocast guard;
    const auto layer = c10::static_intrusive_pointer_cast<Float8Layer>(
        context->saved_data["layer"].toCapsule());
    const Operands operands{*layer};
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& grad_output = grads[0];
    at::Tensor grad_input;
    if (context->needs_input_grad(0))
      grad_input = grad_of_input(operands, grad_output, saved[0].t());
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      const bool is_cast = context->saved_data["is_cast"].toBool();
      grad_weight = is_cast
          ? grad_of_weight(
                operands,
                grad_output,
                Float8Matrix{
                    saved[1].view(layer->rules.input->dtype), saved[2]})
          : grad_of_weight(operands, grad_output, saved[1]);
      // A parameter in another dtype than the input gets its own.
      grad_weight = grad_weight.t().to(saved[0].scalar_type());
    }
    return {grad_input, grad_weight, at::Tensor(), at::Tensor()};
  }

  static at::Tensor grad_of_input(
      const Operands& operands,
      const at::Tensor& grad_output,
      const at::Tensor& weight) {
    const Float8Rules& rules = operands.layer.rules;
    if (!rules.grad_output || !rules.weight_for_grad_input)
      return at::mm(grad_output, weight.to(grad_output.scalar_type()));
    return multiply(
        operands.cast(
            grad_output, *rules.grad_output, 1, Float8Layer::grad_output),
        transposed(operands.cast(
            weight, *rules.weight_for_grad_input, 0, Float8Layer::weight)),
        grad_output.scalar_type(),
        operands.layer.multiplier);
  }

  static at::Tensor grad_of_weight(
      const Operands& operands,
      const at::Tensor& grad_output,
      const Float8Matrix& input) {
    const auto& cast = operands.layer.rules.grad_output_for_grad_weight;
    if (!cast) {
      return at::mm(
          grad_output.t(), input.dequantize().to(grad_output.scalar_type()));
    }
    return multiply(
        transposed(
            operands.cast(grad_output, *cast, 0, Float8Layer::grad_output)),
        transposed(input),
        grad_output.scalar_type(),
        operands.layer.multiplier);
  }

  static at::Tensor grad_of_weight(
      const Operands& operands,
      const at::Tensor& grad_output,
      const at::Tensor& input) {
    const Float8Rules& rules = operands.layer.rules;
    if (!rules.grad_output_for_grad_weight || !rules.input_for_grad_weight)
      return at::mm(grad_output.t(), input);
    return grad_of_weight(
        operands,
        grad_output,
        operands.cast(
            input, *rules.input_for_grad_weight, 0, Float8Layer::input));
  }
};

}  // namespace

float DelayedTensor::use(float amax) {
  const std::lock_guard lock(mutex_);
  if (std::isnan(amax)) amax = std::numeric_limits<float>::infinity();
  pending_ = std::max(pending_, amax);
  return scale_.scale();
}

float DelayedTensor::take_amax() {
  const std::lock_guard lock(mutex_);
  return std::exchange(pending_, 0.0F);
}

void DelayedTensor::update(float amax) {
  const std::lock_guard lock(mutex_);
  scale_.update(amax);
}

Float8Layer::Float8Layer(std::string layer_name, const Float8Rules& layer_rules)
    : name(std::move(layer_name)), rules(layer_rules) {
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

at::Tensor multiply(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype,
    Float8Multiplier multiplier) {
  if (is_multiplied_by_device(a, b, multiplier))
    return multiply_on_device(a, b, dtype);
  return at::mm(a.dequantize(), b.dequantize().t()).to(dtype);
}

Float8Multiplier float8_multiplier(
    c10::Device device,
    const Float8Rules& rules) {
  if (device.is_cpu() || !rules.input || !rules.weight)
    return Float8Multiplier::emulation;
  const at::NoGradGuard no_grad;
  try {
    const auto options =
        at::TensorOptions().dtype(at::kBFloat16).device(device);
    const at::Tensor values =
        at::arange(32 * 32, options).view({32, 32}).remainder(7).sub(3);
    const Float8Matrix a = cast_dynamically(values, *rules.input, 1);
    const Float8Matrix b = cast_dynamically(values.t(), *rules.weight, 1);
    const at::Tensor found = multiply_on_device(a, b, at::kBFloat16);
    const at::Tensor expected =
        multiply(a, b, at::kBFloat16, Float8Multiplier::emulation);
    if (at::allclose(found, expected, 1e-2, 1e-2)) {
      return rules.pads ? Float8Multiplier::padding_device
                        : Float8Multiplier::device;
    }
  } catch (const std::exception&) {
    // LibTorch has no function that says which devices and layouts it knows.
  }
  return Float8Multiplier::emulation;
}

at::Tensor float8_product(
    const at::Tensor& input,
    const at::Tensor& transposed_weight,
    const c10::intrusive_ptr<Float8Layer>& layer) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  const at::Tensor matrix = input.reshape({-1, sizes.back()});
  sizes.back() = transposed_weight.size(1);
  // Inside of the function nothing requires gradients.
  const bool trains_weight =
      at::GradMode::is_enabled() && transposed_weight.requires_grad();
  return Float8LinearFunction::apply(
             matrix, transposed_weight, layer, trains_weight)
      .view(sizes);
}

}  // namespace accelerate::detail
