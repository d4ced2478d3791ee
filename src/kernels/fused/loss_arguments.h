#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <accelerate/fused.h>

namespace accelerate::detail {

/// The targets of a cross entropy over rows, and what each weighs.
struct RowTargets {
  /// [rows], int64: classes; 0 where a row does not count.
  at::Tensor classes;
  /// [rows], bool.
  at::Tensor is_counted;
  /// [rows], in the dtype of sums: the weight of the target's class, 0 where a
  /// row does not count.
  at::Tensor weights;
  /// [classes], in the dtype of sums, or undefined.
  at::Tensor class_weights;
  /// The share of each target that is spread over the classes.
  double smoothing = 0;
  std::int64_t num_classes = 0;

  /// The targets of rows [first, first + count).
  [[nodiscard]] RowTargets rows(std::int64_t first, std::int64_t count) const;
  /// Sum of all class weights: a scalar, or undefined if all are 1.
  [[nodiscard]] at::Tensor total_of_classes() const;
};

/// The function's name, as in messages, and the shape and dtype of its logits.
struct LossCall {
  std::string_view function;
  at::IntArrayRef rows_shape;
  std::int64_t num_classes = 0;
  at::TensorOptions logits;
};

/// Checks the arguments that both functions have. Throws ConfigError with all
/// that is wrong.
RowTargets read_targets(
    const LossCall& call,
    const at::Tensor& targets,
    std::int64_t ignore_index,
    double label_smoothing,
    const at::Tensor& class_weights);

/// Complaints about a float tensor that a function computes with: "X must ...,
/// but is ...; ", or nothing.
std::string complain_about_dtype(
    std::string_view name,
    const at::Tensor& tensor);

/// Throws ConfigError if there are complaints.
void throw_complaints(std::string_view function, const std::string& complaints);

}  // namespace accelerate::detail
