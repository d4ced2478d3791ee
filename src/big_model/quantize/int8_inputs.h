#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace accelerate::detail {

/// A matrix whose rows are quantised to int8, except for outlier columns
/// (LLM.int8(), Dettmers et al. 2022, section 3).
struct Int8Inputs {
  at::Tensor values;  ///< int8 [rows, columns], 0 in outlier columns
  at::Tensor absmax;  ///< fp32 [rows], without the outliers
  /// int64; unset without a threshold.
  std::optional<at::Tensor> outlier_columns;
};

/// Outliers are columns with an absolute value of at least `threshold`, if
/// `threshold` is above 0.
Int8Inputs quantize_int8_inputs(const at::Tensor& input, double threshold);

/// a * b^T of int8 matrices on the CPU, in int32.
at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b);

/// Such a product in fp32: multiplied by both scales, divided by 127 * 127.
at::Tensor int8_mm_dequant(
    const at::Tensor& product,
    const at::Tensor& row_absmax,
    const at::Tensor& column_absmax);

}  // namespace accelerate::detail
