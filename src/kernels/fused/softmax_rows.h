#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

// The two passes of a softmax cross entropy over contiguous logits, [rows,
// classes]. Numbers per row are in the dtype of sums: fp64 for fp64 logits,
// else fp32. Targets are classes.

at::ScalarType dtype_of_sums(const at::Tensor& logits);

/// What a row contributes; each tensor is [rows].
struct RowSums {
  /// The largest logit.
  at::Tensor largest;
  /// log(sum of exp(logit - largest)).
  at::Tensor log_sum;
  /// The sum of (logit - largest), times the class's weight. Undefined unless
  /// it was asked for.
  at::Tensor sum;
};

/// `class_weights`: in the dtype of sums; may be undefined, and is needed for
/// `RowSums::sum` only.
RowSums softmax_rows(
    const at::Tensor& logits,
    const at::Tensor& class_weights,
    bool needs_sum);

/// The factors of a gradient, each [rows].
struct GradientFactors {
  at::Tensor of_softmax;
  at::Tensor of_target;
  /// Undefined: 0.
  at::Tensor of_classes;
};

/// Writes of_softmax * softmax - of_target at the target - of_classes * weight
/// of the class into `gradients`, which has the logits' dtype and shape and may
/// be `logits`. Rows with a factor of_softmax of 0 get zeros, whatever their
/// logits are. `log_sums`: largest + log_sum.
void write_gradients(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& class_weights,
    const at::Tensor& log_sums,
    const GradientFactors& factors,
    const at::Tensor& gradients);

}  // namespace accelerate::detail
