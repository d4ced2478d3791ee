#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace accelerate::detail
