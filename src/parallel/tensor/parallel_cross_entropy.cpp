#include <accelerate/parallel_cross_entropy.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>
#include <accelerate/fused.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// This rank's range of classes among those of all ranks.
struct OwnClasses {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t total = 0;
};

OwnClasses own_classes(const at::Tensor& logits, const Group& group) {
  OwnClasses classes;
  const at::Tensor own = at::full({1}, logits.size(-1), at::kLong);
  const std::vector<at::Tensor> sizes = group.all_gather(own);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto size =
        sizes[static_cast<std::size_t>(rank)].item<std::int64_t>();
    if (rank < group.rank()) classes.begin += size;
    classes.total += size;
  }
  classes.end = classes.begin + logits.size(-1);
  return classes;
}

// Takes rows of logits, in the dtype of the sums.
struct ParallelCrossEntropy : torch::autograd::Function<ParallelCrossEntropy> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& targets,
      const at::Tensor& is_counted,
      const OwnClasses& classes,
      const Group& group) {
    const bool has_classes = logits.size(-1) > 0;
    at::Tensor largest = has_classes
        ? logits.amax(-1)
        : at::full({logits.size(0)}, -INFINITY, logits.options());
    group.all_reduce(largest, ReduceOp::max);
    const at::Tensor shifted = logits - largest.unsqueeze(-1);
    const at::Tensor is_own = is_counted.logical_and(targets.ge(classes.begin))
                                  .logical_and_(targets.lt(classes.end));
    const at::Tensor own =
        (targets - classes.begin).masked_fill_(is_own.logical_not(), 0);
    at::Tensor exponentials = shifted.exp();
    // The sum of exponentials and the target's logit, per row.
    const at::Tensor sums = at::zeros({2, logits.size(0)}, logits.options());
    sums[0].copy_(exponentials.sum(-1));
    if (has_classes) {
      sums[1].copy_(shifted.gather(-1, own.unsqueeze(-1))
                        .squeeze(-1)
                        .masked_fill(is_own.logical_not(), 0));
    }
    group.all_reduce(sums);
    const at::Tensor count = is_counted.sum().to(logits.scalar_type());
    context->save_for_backward(
        {exponentials.div_(sums[0].unsqueeze(-1)),
         own,
         is_own,
         is_counted,
         count});
    return (sums[0].log() - sums[1])
               .masked_fill(is_counted.logical_not(), 0)
               .sum() /
        count;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& probabilities = saved[0];
    const at::Tensor scale = gradients.front() / saved[4];
    at::Tensor gradient = probabilities * saved[3].unsqueeze(-1);
    if (gradient.size(-1) > 0) {
      gradient.scatter_add_(
          -1,
          saved[1].unsqueeze(-1),
          saved[2].unsqueeze(-1).to(gradient.scalar_type()).neg());
    }
    gradient.mul_(scale);
    return {gradient, {}, {}, {}, {}};
  }
};

void require_fitting(const at::Tensor& logits, const at::Tensor& targets) {
  if (logits.dim() > 0 && logits.is_floating_point() &&
      targets.scalar_type() == at::kLong &&
      logits.sizes().slice(0, static_cast<std::size_t>(logits.dim() - 1)) ==
          targets.sizes()) {
    return;
  }
  throw ConfigError(format(
      "[parallel] logits must be floating-point, targets int64, and logits "
      "must have the targets' shape plus a last dimension, but are {} of shape "
      "{} with {} targets of shape {}",
      c10::toString(logits.scalar_type()),
      logits.sizes(),
      c10::toString(targets.scalar_type()),
      targets.sizes()));
}

}  // namespace

at::Tensor parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const Group& group,
    std::int64_t ignore_index) {
  require_fitting(logits, targets);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const OwnClasses classes = own_classes(logits, group);
  const at::Tensor rows = targets.reshape({-1});
  const at::Tensor is_counted = rows.ne(ignore_index);
  if (rows.is_cpu()) {
    const at::Tensor beyond =
        is_counted.logical_and(rows.lt(0).logical_or_(rows.ge(classes.total)));
    if (beyond.any().item<bool>()) {
      throw ConfigError(format(
          "[parallel] targets of parallel_cross_entropy() must be classes, but "
          "one is {}; classes count from 0 to {}",
          rows.masked_select(beyond)[0].item<std::int64_t>(),
          classes.total - 1));
    }
  }
  // A single rank has no other to agree with.
  if (group.size() == 1)
    return fused_cross_entropy(logits, targets, {.ignore_index = ignore_index});
  const at::ScalarType summed_in =
      logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return ParallelCrossEntropy::apply(
      logits.reshape({rows.numel(), logits.size(-1)}).to(summed_in),
      rows,
      is_counted,
      classes,
      group);
}

}  // namespace accelerate
