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

/// What only the caller knows, since inside the function nothing requires
/// gradients.
struct Uses {
  /// True if the weight gets a gradient.
  bool trains_weight = false;
  /// True if anything gets a gradient.
  bool has_backward = false;
  /// True if this forward updates the amax history even without a backward.
  bool counts_at_once = false;
  /// See Float8Layer::has_positions.
  bool of_positions = false;
};

/// The form in which the input is kept for the gradient of the weight.
enum class KeptInput : std::int64_t { none, full, cast, cast_along_rows };

KeptInput kept_input(const Float8Rules& rules, bool trains_weight) {
  if (!trains_weight) return KeptInput::none;
  if (!rules.grad_output_for_grad_weight || !rules.input_for_grad_weight)
    return KeptInput::full;
  return rules.is_same_cast(rules.input, rules.input_for_grad_weight)
      ? KeptInput::cast
      : KeptInput::cast_along_rows;
}

/// The gradients of one product.
class Float8Gradients {
 public:
  Float8Gradients(
      AutogradContext* context,
      Float8Layer& layer,
      const at::Tensor& grad_output)
      : layer_(layer),
        saved_(context->get_saved_variables()),
        grad_output_(grad_output),
        kept_(static_cast<KeptInput>(context->saved_data["kept"].toInt())),
        is_measured_(context->saved_data["is_measured"].toBool()),
        of_positions_(context->saved_data["of_positions"].toBool()) {}

  at::Tensor of_input() {
    const Float8Rules& rules = layer_.rules;
    const at::Tensor weight = saved_[0].t();
    if (!rules.grad_output || !rules.weight_for_grad_input)
      return at::mm(grad_output_, weight.to(grad_output_.scalar_type()));
    const MeasuredMatrix cast_weight = layer_.cast_weight(
        weight,
        *rules.weight_for_grad_input,
        0,
        /*also_transposed=*/true);
    layer_.note(Float8Layer::weight, cast_weight.amax);
    at::Tensor grad_input = layer_.multiply(
        Float8Layer::grad_input,
        cast(*rules.grad_output, 1),
        cast_weight.matrix.transposed(),
        grad_output_.scalar_type());
    if (is_measured_) {
      layer_.statistics.add_cast(
          Float8Layer::weight, weight, cast_weight.matrix);
      layer_.statistics.add_product(
          Float8Layer::grad_input, grad_input, grad_output_, weight);
    }
    return grad_input;
  }

  /// The gradient of the transposed weight.
  at::Tensor of_weight() {
    at::Tensor grad_weight = kept_ == KeptInput::full
        ? at::mm(grad_output_.t(), saved_[1])
        : layer_.multiply(
              Float8Layer::grad_weight,
              cast(*layer_.rules.grad_output_for_grad_weight, 0).transposed(),
              kept_input().transposed(),
              grad_output_.scalar_type());
    if (is_measured_ && kept_ != KeptInput::full) {
      layer_.statistics.add_product(
          Float8Layer::grad_weight, grad_weight, grad_output_.t(), saved_[3]);
    }
    // A parameter whose dtype differs from the input's gets its own dtype.
    return grad_weight.t().to(saved_[0].scalar_type());
  }

 private:
  // One cast may serve both products.
  Float8Matrix cast(const DynamicCast& how, std::int64_t dim) {
    const Float8Rules& rules = layer_.rules;
    const bool is_same = rules.is_same_cast(
        rules.grad_output, rules.grad_output_for_grad_weight);
    if (cast_grad_ && is_same) return *cast_grad_;
    const MeasuredMatrix made = layer_.cast(
        grad_output_,
        how,
        dim,
        Float8Layer::grad_output,
        {of_positions_, /*also_transposed=*/is_same});
    layer_.note(Float8Layer::grad_output, made.amax);
    if (is_measured_) {
      layer_.statistics.add_cast(
          Float8Layer::grad_output, grad_output_, made.matrix);
    }
    cast_grad_ = made.matrix;
    return made.matrix;
  }

  [[nodiscard]] Float8Matrix kept_input() const {
    const DynamicCast& how = *layer_.rules.input_for_grad_weight;
    const bool has_blocks = kept_ == KeptInput::cast_along_rows &&
        how.granularity == Float8Granularity::blocks;
    return {
        saved_[1].view(how.dtype),
        has_blocks
            ? saved_[2].view(at::kFloat8_e8m0fnu).to(at::kFloat).reciprocal()
            : saved_[2],
        has_blocks ? std::optional<std::int64_t>(0) : std::nullopt};
  }

  Float8Layer& layer_;
  variable_list saved_;
  at::Tensor grad_output_;
  KeptInput kept_;
  bool is_measured_;
  bool of_positions_;
  std::optional<Float8Matrix> cast_grad_;
};

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
          input,
          *rules.input,
          1,
          Float8Layer::input,
          {uses.of_positions, /*also_transposed=*/kept == KeptInput::cast});
      if (is_measured)
        layer->statistics.add_cast(
            Float8Layer::input, input, cast_input.matrix);
    }
    at::Tensor output;
    MeasuredMatrix cast_weight;
    if (is_float8) {
      cast_weight = layer->cast_weight(
          weight,
          *rules.weight,
          1,
          /*also_transposed=*/uses.has_backward &&
              rules.is_same_cast(rules.weight, rules.weight_for_grad_input));
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
    keep_input(
        context, *layer, kept, uses, {input, transposed_weight}, cast_input);
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
    Float8Gradients gradients(context, *layer, grads[0]);
    at::Tensor grad_input, grad_weight;
    if (context->needs_input_grad(0)) grad_input = gradients.of_input();
    if (context->needs_input_grad(1)) grad_weight = gradients.of_weight();
    return {grad_input, grad_weight, at::Tensor(), at::Tensor()};
  }

 private:
  struct Operands {
    const at::Tensor& input;
    const at::Tensor& transposed_weight;
  };

  // Saves what the gradients need. Casts the input along its rows now, if its
  // gradient needs that, so that only one byte per value is kept.
  static void keep_input(
      AutogradContext* context,
      Float8Layer& layer,
      KeptInput kept,
      const Uses& uses,
      const Operands& operands,
      MeasuredMatrix& cast_input) {
    const auto& [input, transposed_weight] = operands;
    const bool is_measured = uses.has_backward && layer.is_measured;
    // Kept for comparison with the gradient of the weight.
    const at::Tensor measured_input = is_measured ? input : at::Tensor();
    if (kept == KeptInput::cast_along_rows) {
      const MeasuredMatrix along_rows = layer.cast(
          input,
          *layer.rules.input_for_grad_weight,
          0,
          Float8Layer::input,
          {uses.of_positions});
      if (is_measured) {
        layer.statistics.add_cast(Float8Layer::input, input, along_rows.matrix);
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
  }

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
    // The gradient needs the transposed values.
    const at::Tensor values = input.transposed_values.defined()
        ? input.transposed_values.t()
        : input.values;
    variable_list tensors{
        transposed_weight,
        values.view(at::kByte),
        input.block_dim ? input.e8m0_scales().view(at::kByte) : input.scale};
    if (measured_input.defined()) tensors.push_back(measured_input);
    context->save_for_backward(std::move(tensors));
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
  const at::Tensor product = Float8LinearFunction::apply(
      matrix,
      transposed_weight,
      layer,
      Uses{
          trains_weight,
          has_backward,
          records,
          layer->has_positions && layer->has_positions()});
  // Like matmul(), so that the result may be changed in place.
  return at::_unsafe_view(product, sizes);
}

}  // namespace accelerate::detail
