#include <algorithm>
#include <optional>
#include <string>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>
#include <accelerate/fused.h>

#include "base/text/text.h"
#include "kernels/fused/loss_arguments.h"
#include "kernels/fused/once_differentiable.h"
#include "kernels/fused/row_losses.h"

namespace accelerate {

namespace {

using detail::format;
using detail::RowTargets;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kLinearName = "fused_linear_cross_entropy";
constexpr std::int64_t kFewestRows = 256;

/// The layer: logits = linear(hidden, weight, bias), computed in `dtype`.
struct LossLayer {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;
  at::ScalarType dtype = at::kFloat;
  std::int64_t chunk_size = 0;
};

/// Which of the layer's tensors get gradients.
struct Needed {
  bool hidden = false;
  bool weight = false;
  bool bias = false;
  [[nodiscard]] bool any() const { return hidden || weight || bias; }
};

at::ScalarType wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Computes the losses of one chunk of rows after another, with the gradients
/// of their sum.
class ChunkedLoss {
 public:
  ChunkedLoss(const LossLayer& layer, const RowTargets& targets, Needed needed)
      : layer_(layer),
        targets_(targets),
        needed_(needed),
        weight_(layer.weight.to(layer.dtype)),
        one_(at::ones({}, targets.weights.options())),
        logits_(at::empty(
            {std::min(layer.chunk_size, layer.hidden.size(0)),
             layer.weight.size(0)},
            layer.hidden.options().dtype(layer.dtype))),
        loss_(at::zeros({}, targets.weights.options())) {
    const auto zeros = [](const at::Tensor& like) {
      return at::zeros(like.sizes(), like.options().dtype(wide(like)));
    };
    if (needed.hidden) of_hidden_ = at::empty_like(layer.hidden);
    if (needed.weight) of_weight_ = zeros(layer.weight);
    if (needed.bias) of_bias_ = zeros(layer.bias);
  }

  // Returns the sum of the losses.
  at::Tensor run() {
    const std::int64_t rows = layer_.hidden.size(0);
    for (std::int64_t row = 0; row < rows; row += layer_.chunk_size)
      add(row, std::min(layer_.chunk_size, rows - row));
    return loss_;
  }

  // The gradients of that sum; undefined where they are not needed.
  [[nodiscard]] variable_list gradients() const {
    const auto own = [](const at::Tensor& gradient, const at::Tensor& of) {
      return gradient.defined() ? gradient.to(of.scalar_type()) : gradient;
    };
    return {
        of_hidden_, own(of_weight_, layer_.weight), own(of_bias_, layer_.bias)};
  }

 private:
  void add(std::int64_t first, std::int64_t count) {
    const at::Tensor hidden =
        layer_.hidden.narrow(0, first, count).to(layer_.dtype);
    at::Tensor logits = logits_.narrow(0, 0, count);
    if (layer_.bias.defined()) {
      at::addmm_out(logits, layer_.bias.to(layer_.dtype), hidden, weight_.t());
    } else {
      at::mm_out(logits, hidden, weight_.t());
    }
    const RowTargets targets = targets_.rows(first, count);
    const detail::RowLosses rows = detail::row_losses(logits, targets);
    loss_.add_(rows.losses.sum());
    if (!needed_.any()) return;
    // The logits become their gradients.
    detail::write_gradients(
        logits,
        targets.classes,
        targets.class_weights,
        rows.log_sums,
        detail::gradient_factors(targets, one_),
        logits);
    if (needed_.hidden) {
      at::Tensor of_rows = of_hidden_.narrow(0, first, count);
      if (of_rows.scalar_type() == layer_.dtype) {
        at::mm_out(of_rows, logits, weight_);
      } else {
        of_rows.copy_(at::mm(logits, weight_));
      }
    }
    if (needed_.weight) {
      if (of_weight_.scalar_type() == layer_.dtype) {
        of_weight_.addmm_(logits.t(), hidden);
      } else {
        of_weight_.add_(at::mm(logits.t(), hidden));
      }
    }
    if (needed_.bias)
      of_bias_.add_(logits.sum(0, false, of_bias_.scalar_type()));
  }

  const LossLayer& layer_;
  const RowTargets& targets_;
  Needed needed_;
  at::Tensor weight_;
  at::Tensor one_;
  at::Tensor logits_;
  at::Tensor loss_;
  at::Tensor of_hidden_;
  at::Tensor of_weight_;
  at::Tensor of_bias_;
};

struct FusedLinearCrossEntropy
    : torch::autograd::Function<FusedLinearCrossEntropy> {
  // `hidden`, `weight` and `bias` are those of `layer`; autograd finds them
  // among the arguments. `no_rows`: no rows of `hidden`, which stands for it in
  // backward, so that its memory need not be kept.
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const at::Tensor& no_rows,
      LossLayer layer,
      const RowTargets& targets,
      LossReduction reduction,
      Needed needed) {
    layer.hidden = hidden;
    layer.weight = weight;
    layer.bias = bias.value_or(at::Tensor());
    ChunkedLoss chunks(layer, targets, needed);
    const at::Tensor sum = chunks.run();
    const at::Tensor divisor = reduction == LossReduction::mean
        ? targets.weights.sum()
        : at::ones({}, sum.options());
    context->save_for_backward({no_rows, weight, layer.bias});
    // These are scaled in place, so they must not be saved as variables.
    context->saved_data["divisor"] = divisor;
    const variable_list gradients = chunks.gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) context->saved_data[key(i)] = gradients[i];
    return sum / divisor;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& incoming) {
    if (context->saved_data.count("divisor") == 0) {
      throw ConfigError(format(
          "[kernels] the result of {}() must have one backward, but has a "
          "second; call it again",
          kLinearName));
    }
    const at::Tensor divisor = context->saved_data["divisor"].toTensor();
    context->saved_data.erase("divisor");
    const variable_list inputs = context->get_saved_variables();
    variable_list gradients(8);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto found = context->saved_data.find(key(i));
      if (found == context->saved_data.end()) continue;
      at::Tensor gradient = found->second.toTensor();
      context->saved_data.erase(found);
      {
        const at::NoGradGuard no_grad;
        gradient.mul_(incoming[0] / divisor);
        // The gradient of a mean over no targets is 0, not 0 / 0.
        gradient.masked_fill_(divisor.eq(0), 0);
      }
      gradients[i] = detail::once_differentiable(
          gradient,
          {incoming[0], inputs[0], inputs[1], inputs[2]},
          kLinearName);
    }
    return gradients;
  }

 private:
  static std::string key(std::size_t index) {
    return "gradient" + std::to_string(index);
  }
};

// The dtype in which autocast, or the program, computes the products.
at::ScalarType product_dtype(const at::Tensor& hidden) {
  const c10::DeviceType device = hidden.device().type();
  return hidden.scalar_type() != at::kDouble &&
          at::autocast::is_autocast_enabled(device)
      ? at::autocast::get_autocast_dtype(device)
      : hidden.scalar_type();
}

std::string complain_about_layer(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  std::string complaints = detail::complain_about_dtype("hidden", hidden);
  const bool has_autocast = product_dtype(hidden) != hidden.scalar_type();
  if (hidden.dim() == 0)
    return complaints + "hidden must have features, but is a scalar; ";
  if (weight.dim() != 2 || weight.size(1) != hidden.size(-1)) {
    complaints += format(
        "weight must have shape [classes, {}], but is of shape {}; ",
        hidden.size(-1),
        weight.sizes());
  } else if (
      bias.defined() && bias.sizes() != at::IntArrayRef({weight.size(0)})) {
    complaints += format(
        "bias must have shape [{}], but is of shape {}; ",
        weight.size(0),
        bias.sizes());
  }
  const auto compare = [&](std::string_view name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.device() != hidden.device()) {
      complaints += format(
          "{} must be on {}, but is on {}; ",
          name,
          hidden.device(),
          tensor.device());
    }
    if (!has_autocast && tensor.scalar_type() != hidden.scalar_type()) {
      complaints += format(
          "{} must be {}, as hidden is, but is {}; ",
          name,
          c10::toString(hidden.scalar_type()),
          c10::toString(tensor.scalar_type()));
    }
  };
  compare("weight", weight);
  compare("bias", bias);
  return complaints;
}

void require_layer(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const FusedLinearCrossEntropyOptions& options) {
  std::string complaints;
  if (!hidden.defined() || !weight.defined()) {
    complaints = "hidden and weight must be defined, but one is not; ";
  } else {
    complaints = complain_about_layer(hidden, weight, options.bias);
  }
  if (options.reduction == LossReduction::none)
    complaints += "reduction must be mean or sum, but is none; ";
  if (options.chunk_size < 0) {
    complaints += format(
        "chunk_size must be at least 0, but is {}; ", options.chunk_size);
  }
  detail::throw_complaints(kLinearName, complaints);
}

}  // namespace

at::Tensor fused_linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const FusedLinearCrossEntropyOptions& options) {
  require_layer(hidden, weight, options);
  LossLayer layer;
  layer.dtype = product_dtype(hidden);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const RowTargets rows = detail::read_targets(
      {kLinearName,
       hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)),
       weight.size(0),
       hidden.options()},
      targets,
      options.ignore_index,
      options.label_smoothing,
      options.class_weights);
  const at::Tensor matrix =
      hidden.reshape({rows.classes.size(0), hidden.size(-1)}).contiguous();
  layer.chunk_size = options.chunk_size > 0
      ? options.chunk_size
      : std::max(kFewestRows, matrix.numel() / weight.size(0));
  const bool records = at::GradMode::is_enabled();
  const auto needs = [records](const at::Tensor& tensor) {
    return records && tensor.defined() && tensor.requires_grad();
  };
  return FusedLinearCrossEntropy::apply(
      matrix,
      weight,
      options.bias.defined() ? std::optional(options.bias) : std::nullopt,
      matrix.narrow(0, 0, 0).clone(),
      layer,
      rows,
      options.reduction,
      Needed{needs(hidden), needs(weight), needs(options.bias)});
}

}  // namespace accelerate
