#include <string>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
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

constexpr std::string_view kName = "fused_cross_entropy";

/// Takes contiguous rows of logits.
struct FusedCrossEntropy : torch::autograd::Function<FusedCrossEntropy> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const RowTargets& targets,
      LossReduction reduction,
      bool overwrites) {
    const detail::RowLosses rows = detail::row_losses(logits, targets);
    const at::Tensor total = targets.weights.sum();
    context->save_for_backward(
        {logits,
         rows.log_sums,
         targets.classes,
         targets.is_counted,
         targets.weights,
         targets.class_weights,
         total});
    context->saved_data["smoothing"] = targets.smoothing;
    context->saved_data["is_mean"] = reduction == LossReduction::mean;
    context->saved_data["overwrites"] = overwrites;
    switch (reduction) {
      case LossReduction::mean:
        return rows.losses.sum() / total;
      case LossReduction::sum:
        return rows.losses.sum();
      case LossReduction::none:
        return rows.losses;
    }
    return {};
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    at::Tensor gradient;
    {
      const at::NoGradGuard no_grad;
      RowTargets targets;
      targets.classes = saved[2];
      targets.is_counted = saved[3];
      targets.weights = saved[4];
      targets.class_weights = saved[5];
      targets.smoothing = context->saved_data["smoothing"].toDouble();
      targets.num_classes = logits.size(1);
      const at::Tensor of_losses = context->saved_data["is_mean"].toBool()
          ? gradients[0] / saved[6]
          : gradients[0];
      // Gradients replace the logits, so that another backward notices that the
      // logits are gone.
      gradient = context->saved_data["overwrites"].toBool()
          ? logits.detach()
          : at::empty_like(logits);
      detail::write_gradients(
          logits.detach(),
          targets.classes,
          targets.class_weights,
          saved[1],
          detail::gradient_factors(targets, of_losses),
          gradient);
    }
    gradient =
        detail::once_differentiable(gradient, {gradients[0], logits}, kName);
    return {gradient, {}, {}, {}};
  }
};

void require_logits(const at::Tensor& logits) {
  std::string complaints;
  if (!logits.defined()) {
    complaints = "logits must be defined, but is not; ";
  } else {
    complaints = detail::complain_about_dtype("logits", logits);
    if (logits.dim() == 0)
      complaints +=
          "logits must have a dimension of classes, but are a scalar; ";
  }
  detail::throw_complaints(kName, complaints);
}

}  // namespace

at::Tensor fused_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const FusedCrossEntropyOptions& options) {
  require_logits(logits);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const at::IntArrayRef shape =
      logits.sizes().slice(0, static_cast<std::size_t>(logits.dim() - 1));
  const RowTargets rows = detail::read_targets(
      {kName, shape, logits.size(-1), logits.options()},
      targets,
      options.ignore_index,
      options.label_smoothing,
      options.class_weights);
  at::Tensor matrix = logits.reshape({rows.classes.size(0), logits.size(-1)});
  if (options.overwrite_logits && !matrix.is_contiguous()) {
    throw ConfigError(format(
        "[kernels] {}(): logits must be contiguous if overwrite_logits is set, "
        "but have strides {}",
        kName,
        logits.strides()));
  }
  const at::Tensor loss = FusedCrossEntropy::apply(
      matrix.contiguous(), rows, options.reduction, options.overwrite_logits);
  return options.reduction == LossReduction::none ? loss.view(shape) : loss;
}

}  // namespace accelerate
