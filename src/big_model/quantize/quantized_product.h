#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/quantize.h>

namespace accelerate::detail {

/// How an input is multiplied by a quantised matrix.
struct ProductKind {
  /// Multiplies by the matrix itself instead of its transpose.
  bool is_transposed = false;
  /// LLM.int8(): quantises the input as well.
  bool quantizes_inputs = false;
  double threshold = 0;
};

/// The product with the last dimension of `input`, in fp32; differentiable in
/// the input, to any order.
at::Tensor quantized_product(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    const ProductKind& kind = {});

/// linear() and llm_int8_linear(): the product in the input's dtype, with the
/// bias added in fp32. `bias` may be undefined.
at::Tensor quantized_linear(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    const at::Tensor& bias,
    const ProductKind& kind = {});

/// input [rows, columns] * weight^T, contiguous fp32 on the CPU: for a few rows
/// by kernels that read the codes, otherwise by dequantising one part of the
/// weight at a time.
at::Tensor multiply_by_rows(
    const at::Tensor& input,
    const QuantizedWeight& weight);

/// input [rows, weight's rows] * weight, in the same way.
at::Tensor multiply_by_columns(
    const at::Tensor& input,
    const QuantizedWeight& weight);

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

/// a * b^T of int8 matrices: in int32 on the CPU, in fp32 on other devices.
at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b);

/// Such a product in fp32: multiplied by both scales, divided by 127 * 127.
at::Tensor int8_mm_dequant(
    const at::Tensor& product,
    const at::Tensor& row_absmax,
    const at::Tensor& column_absmax);

}  // namespace accelerate::detail
