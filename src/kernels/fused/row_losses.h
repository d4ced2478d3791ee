#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/fused/loss_arguments.h"
#include "kernels/fused/softmax_rows.h"

namespace accelerate::detail {

/// The losses of rows, and what their gradients need.
struct RowLosses {
  /// [rows]; 0 where a row does not count.
  at::Tensor losses;
  /// [rows]: the logarithm of the sum of exponentials.
  at::Tensor log_sums;
};

RowLosses row_losses(const at::Tensor& logits, const RowTargets& targets);

/// The factors of the gradients if each row's loss has the gradient
/// `of_losses`, a scalar or [rows].
GradientFactors gradient_factors(
    const RowTargets& targets,
    const at::Tensor& of_losses);

}  // namespace accelerate::detail
