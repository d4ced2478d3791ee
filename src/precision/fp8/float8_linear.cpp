#include "precision/fp8/float8_linear.h"

#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Autograd cannot sum float8 operands, and autocast must not touch them.
struct BelowAutocast {
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// What the caller knows and the function does not: inside it, nothing requires
/// gradients.
struct Uses {
  /// True if the weight gets a gradient.
  bool trains_weight = false;
  /// True if anything gets a gradient.
  bool has_backward = false;
  /// True if this forward's amaxes count although no backward follows.
  bool counts_at_once = false;
  /// See Float8Layer::has_positions.
  bool of_positions = false;
};

/// In which form the input is kept for the gradient of the weight.
enum class KeptInput : std::int64_t { none, full, cast, cast_along_rows };

KeptInput kept_input(const Float8Rules& rules, bool trains_weight) {
  if (!trains_weight) return KeptInput::none;
  if (!rules.grad_output_for_grad_weight || !rules.input_for_grad_weight)
    return KeptInput::full;
  return rules.is_same_cast(rules.input, rules.input_for_grad_weight)
      ? KeptInput::cast
      : KeptInput::cast_along_rows;
}

/// Multiplies matrices; does not return a view, so programs can change the
/// result.
struct Float8LinearFunction : torch::autograd::Function<Float8LinearFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& transposed_weight,
      const c10::intrusive_ptr<Float8Layer>& layer,
      Uses uses) {
    const BelowAutocast guard;
    const Float8Rules& rules = layer->rules;
    const at::Tensor weight = transposed_weight.t();
    const KeptInput kept = kept_input(rules, uses.trains_weight);
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    context->saved_data["kept"] = static_cast<std::int64_t>(kept);
    const bool is_measured = uses.has_backward && layer->is_measured;
    context->saved_data["is_measured"] = is_measured;
    context->saved_data["of_positions"] = uses.of_positions;

    const bool is_float8 = rules.input && rules.weight;
    MeasuredMatrix cast_input;
    if (is_float8 || kept == KeptInput::cast) {
      cast_input = layer->cast(
          input, *rules.input, 1, Float8Layer::input, uses.of_positions);
      if (is_measured)
        layer->statistics.add_cast(
            Float8Layer::input, input, cast_input.matrix);
    }
    at::Tensor output;
    MeasuredMatrix cast_weight;
    if (is_float8) {
      cast_weight = layer->cast_weight(weight, *rules.weight, 1);
      output = layer->multiply(
          Float8Layer::forward,
          cast_input.matrix,
          cast_weight.matrix,
          input.scalar_type());
      if (is_measured) {
        layer->statistics.add_cast(
            Float8Layer::weight, weight, cast_weight.matrix);
        layer->statistics.add_product(
            Float8Layer::forward, output, input, transposed_weight);
      }
    } else {
      output = at::mm(input, transposed_weight.to(input.scalar_type()));
    }
    // Kept for comparison with the gradient of the weight.
    const at::Tensor measured_input = is_measured ? input : at::Tensor();
    if (kept == KeptInput::cast_along_rows) {
      // Cast now, so that only one byte per value is kept.
      const MeasuredMatrix along_rows = layer->cast(
          input,
          *rules.input_for_grad_weight,
          0,
          Float8Layer::input,
          uses.of_positions);
      if (is_measured) {
        layer->statistics.add_cast(
            Float8Layer::input, input, along_rows.matrix);
      }
      save(context, transposed_weight, along_rows.matrix, measured_input);
      cast_input.amax = along_rows.amax;
    } else if (kept == KeptInput::cast) {
      save(context, transposed_weight, cast_input.matrix, measured_input);
    } else if (kept == KeptInput::full) {
      context->save_for_backward({transposed_weight, input});
    } else {
      context->save_for_backward({transposed_weight});
    }
    if (uses.has_backward) {
      context->saved_data["amaxes"] = std::vector<at::Tensor>{
          defined(cast_input.amax), defined(cast_weight.amax)};
    } else if (uses.counts_at_once) {
      layer->note(Float8Layer::input, cast_input.amax);
      layer->note(Float8Layer::weight, cast_weight.amax);
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
    count(context, *layer);
    const variable_list saved = context->get_saved_variables();
    const auto kept =
        static_cast<KeptInput>(context->saved_data["kept"].toInt());
    const Float8Rules& rules = layer->rules;
    const at::Tensor& grad_output = grads[0];
    const bool is_measured = context->saved_data["is_measured"].toBool();
    // One cast may serve both products.
    std::optional<Float8Matrix> cast_grad;
    const auto cast = [&](const DynamicCast& how, std::int64_t dim) {
      if (cast_grad &&
          rules.is_same_cast(
              rules.grad_output, rules.grad_output_for_grad_weight)) {
        return *cast_grad;
      }
      const MeasuredMatrix made = layer->cast(
          grad_output,
          how,
          dim,
          Float8Layer::grad_output,
          context->saved_data["of_positions"].toBool());
      layer->note(Float8Layer::grad_output, made.amax);
      if (is_measured) {
        layer->statistics.add_cast(
            Float8Layer::grad_output, grad_output, made.matrix);
      }
      cast_grad = made.matrix;
      return made.matrix;
    };
    at::Tensor grad_input;
    if (context->needs_input_grad(0)) {
      const at::Tensor weight = saved[0].t();
      if (rules.grad_output && rules.weight_for_grad_input) {
        const MeasuredMatrix cast_weight =
            layer->cast_weight(weight, *rules.weight_for_grad_input, 0);
        layer->note(Float8Layer::weight, cast_weight.amax);
        grad_input = layer->multiply(
            Float8Layer::grad_input,
            cast(*rules.grad_output, 1),
            cast_weight.matrix.transposed(),
            grad_output.scalar_type());
        if (is_measured) {
          layer->statistics.add_cast(
              Float8Layer::weight, weight, cast_weight.matrix);
          layer->statistics.add_product(
              Float8Layer::grad_input, grad_input, grad_output, weight);
        }
      } else {
        grad_input = at::mm(grad_output, weight.to(grad_output.scalar_type()));
      }
    }
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight = kept == KeptInput::full
          ? at::mm(grad_output.t(), saved[1])
          : layer->multiply(
                Float8Layer::grad_weight,
                cast(*rules.grad_output_for_grad_weight, 0).transposed(),
                restored(*layer, kept, saved).transposed(),
                grad_output.scalar_type());
      if (is_measured && kept != KeptInput::full) {
        layer->statistics.add_product(
            Float8Layer::grad_weight, grad_weight, grad_output.t(), saved[3]);
      }
      // A parameter whose dtype differs from the input's gets its own dtype.
      grad_weight = grad_weight.t().to(saved[0].scalar_type());
    }
    return {grad_input, grad_weight, at::Tensor(), at::Tensor()};
  }

 private:
  // Lists of tensors cannot hold undefined ones.
  static at::Tensor defined(const at::Tensor& amax) {
    return amax.defined() ? amax : at::empty({0});
  }

  static void count(AutogradContext* context, const Float8Layer& layer) {
    const auto amaxes = context->saved_data["amaxes"].toTensorVector();
    const auto note = [&](Float8Layer::Role role, const at::Tensor& amax) {
      if (amax.numel() == 1) layer.note(role, amax);
    };
    note(Float8Layer::input, amaxes[0]);
    note(Float8Layer::weight, amaxes[1]);
  }

  // Saved as bytes, which every operator supports, including those that compare
  // recomputed tensors. `measured_input` may be undefined.
  static void save(
      AutogradContext* context,
      const at::Tensor& transposed_weight,
      const Float8Matrix& input,
      const at::Tensor& measured_input) {
    variable_list tensors{
        transposed_weight,
        input.values.view(at::kByte),
        input.block_dim ? input.e8m0_scales().view(at::kByte) : input.scale};
    if (measured_input.defined()) tensors.push_back(measured_input);
    context->save_for_backward(std::move(tensors));
  }

  static Float8Matrix restored(
      const Float8Layer& layer,
      KeptInput kept,
      const variable_list& saved) {
    const DynamicCast& how = *layer.rules.input_for_grad_weight;
    const bool has_blocks = kept == KeptInput::cast_along_rows &&
        how.granularity == Float8Granularity::blocks;
    return {
        saved[1].view(how.dtype),
        has_blocks
            ? saved[2].view(at::kFloat8_e8m0fnu).to(at::kFloat).reciprocal()
            : saved[2],
        has_blocks ? std::optional<std::int64_t>(0) : std::nullopt};
  }
};

}  // namespace

at::Tensor float8_product(
    const at::Tensor& input,
    const at::Tensor& transposed_weight,
    const c10::intrusive_ptr<Float8Layer>& layer) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  const at::Tensor matrix = input.reshape({-1, sizes.back()});
  sizes.back() = transposed_weight.size(1);
  const bool records = at::GradMode::is_enabled();
  const bool trains_weight = records && transposed_weight.requires_grad();
  const bool has_backward = trains_weight || (records && input.requires_grad());
  return Float8LinearFunction::apply(
             matrix,
             transposed_weight,
             layer,
             Uses{
                 trains_weight,
                 has_backward,
                 records,
                 layer->has_positions && layer->has_positions()})
      .view(sizes);
}

}  // namespace accelerate::detail
