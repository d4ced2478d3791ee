#include "kernels/fused/row_losses.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace accelerate::detail {

// With a share e of each of C classes, weights w and z = logit - largest:
//   loss = (1 - e) w_t (log_sum - z_t) + e / C (sum(w) log_sum - sum(w z))
RowLosses row_losses(const at::Tensor& logits, const RowTargets& targets) {
  const bool is_smoothed = targets.smoothing > 0;
  const RowSums sums = softmax_rows(logits, targets.class_weights, is_smoothed);
  const at::Tensor of_target = logits.gather(1, targets.classes.unsqueeze(1))
                                   .squeeze(1)
                                   .to(sums.largest.scalar_type())
                                   .sub_(sums.largest);
  at::Tensor losses = (sums.log_sum - of_target).mul_(targets.weights);
  if (is_smoothed) {
    const auto classes = static_cast<double>(targets.num_classes);
    const at::Tensor total = targets.total_of_classes();
    const at::Tensor spread =
        total.defined() ? sums.log_sum * total : sums.log_sum * classes;
    losses.mul_(1 - targets.smoothing)
        .add_(spread - sums.sum, targets.smoothing / classes);
  }
  // Logits of rows that do not count may be infinite.
  losses.masked_fill_(targets.is_counted.logical_not(), 0);
  return {losses, sums.largest + sums.log_sum};
}

GradientFactors gradient_factors(
    const RowTargets& targets,
    const at::Tensor& of_losses) {
  // The gradient of a mean over no targets is not finite.
  const at::Tensor counted =
      of_losses.to(targets.weights.scalar_type())
          .expand_as(targets.weights)
          .masked_fill(targets.is_counted.logical_not(), 0);
  GradientFactors factors;
  factors.of_target = counted * targets.weights;
  factors.of_softmax = factors.of_target;
  if (targets.smoothing > 0) {
    const auto classes = static_cast<double>(targets.num_classes);
    const at::Tensor total = targets.total_of_classes();
    factors.of_target.mul_(1 - targets.smoothing);
    factors.of_classes = counted * (targets.smoothing / classes);
    factors.of_softmax = factors.of_target +
        (total.defined() ? factors.of_classes * total
                         : factors.of_classes * classes);
  }
  return factors;
}

}  // namespace accelerate::detail
