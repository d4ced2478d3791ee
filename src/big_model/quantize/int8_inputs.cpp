#include "big_model/quantize/int8_inputs.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "big_model/quantize/block_codes.h"
#include "big_model/quantize/kernels/row_kernels.h"
#include "gate/parallel_ranges.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kRowsOfThread = 16;

}  // namespace

Int8Inputs quantize_int8_inputs(const at::Tensor& input, double threshold) {
  Int8Inputs result;
  at::Tensor values = input.to(at::kCPU, at::kFloat);
  if (threshold > 0) {
    const at::Tensor is_outlier = values.abs() >= threshold;
    const at::Tensor is_column = is_outlier.any(0);
    result.outlier_columns = is_column.nonzero().view(-1);
    // A row's scale covers all its ordinary values, including those in outlier
    // columns.
    values = values.masked_fill(is_outlier, 0);
    result.absmax = values.abs().amax(1);
    values = values.masked_fill(is_column, 0);
  } else {
    result.absmax = values.abs().amax(1);
  }
  const at::Tensor factors =
      at::where(result.absmax > 0, 127.0 / result.absmax, 0.0);
  result.values = (values * factors.unsqueeze(1)).round().to(at::kChar);
  return result;
}

at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  const std::int64_t columns = left.size(1);
  at::Tensor product = at::empty(
      {right.size(0), left.size(0)}, at::TensorOptions().dtype(at::kInt));
  for_parallel_ranges(
      right.size(0), kRowsOfThread, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          row_kernels().multiply_int8_int8(
              right.const_data_ptr<std::int8_t>() + row * columns,
              1,
              left.const_data_ptr<std::int8_t>(),
              left.size(0),
              columns,
              product.mutable_data_ptr<std::int32_t>() + row * left.size(0));
        }
      });
  return product.t().contiguous();
}

at::Tensor int8_mm_dequant(
    const at::Tensor& product,
    const at::Tensor& row_absmax,
    const at::Tensor& column_absmax) {
  return product.to(at::kFloat) *
      (row_absmax.unsqueeze(1) * column_absmax.unsqueeze(0)) *
      (1.0 / (127 * 127));
}

}  // namespace accelerate::detail
