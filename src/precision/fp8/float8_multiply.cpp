#include "precision/fp8/float8_multiply.h"

#include <exception>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

using Way = Float8Multiplier::Way;

// cuBLAS's requirements on operand sizes.
constexpr std::int64_t kMultipleOfSizes = 16;
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileColumns = 4;

std::int64_t missing_to(std::int64_t multiple, std::int64_t size) {
  return (multiple - size % multiple) % multiple;
}

bool has_blocks(const Float8Matrix& a, const Float8Matrix& b) {
  return a.block_dim || b.block_dim;
}

bool has_scales_of_rows(const Float8Matrix& a, const Float8Matrix& b) {
  return a.scale.dim() == 2 || b.scale.dim() == 2;
}

// Returns a dense copy of a byte matrix that is the transpose of a dense one.
// LibTorch copies bytes in this order slowly. Transposing within groups of 8
// rows first, then in 8-byte words, takes half as long (211 us instead of 392
// for 8192 x 8192 on an H200).
at::Tensor transposed_in_words(const at::Tensor& bytes) {
  constexpr std::int64_t kWord = 8;
  const at::Tensor source = bytes.t();
  const std::int64_t rows = source.size(0);
  const std::int64_t columns = source.size(1);
  return source.view({rows / kWord, kWord, columns})
      .transpose(1, 2)
      .contiguous()
      .view(at::kLong)
      .view({rows / kWord, columns})
      .t()
      .contiguous()
      .view(at::kByte)
      .view({columns, rows});
}

at::Tensor dense(const at::Tensor& values) {
  const bool has_words = values.size(1) % 8 == 0 && values.numel() > 0;
  if (values.is_contiguous() || !values.t().is_contiguous() || !has_words)
    return values.contiguous();
  return transposed_in_words(values.view(at::kByte)).view(values.scalar_type());
}

// Pads the ends of both dimensions with zeros.
at::Tensor
padded(const at::Tensor& values, std::int64_t rows, std::int64_t columns) {
  const at::Tensor copied = dense(values);
  if (rows == 0 && columns == 0) return copied;
  return at::constant_pad_nd(copied.view(at::kByte), {0, columns, 0, rows})
      .view(values.scalar_type());
}

// Returns the factors that restore values, one per row.
at::Tensor factors_of_rows(const at::Tensor& scale, std::int64_t rows) {
  const at::Tensor inverse = scale.reciprocal();
  if (scale.dim() == 0) return inverse.expand({rows, 1});
  return inverse;
}

at::Tensor with_rows(const at::Tensor& factors, std::int64_t rows) {
  const std::int64_t missing = rows - factors.size(0);
  return (missing == 0 ? factors
                       : at::constant_pad_nd(factors, {0, 0, 0, missing}, 1))
      .contiguous();
}

bool has_device_sizes(const Float8Matrix& a, const Float8Matrix& b) {
  const std::int64_t inner = has_blocks(a, b) ? kMxBlockSize : kMultipleOfSizes;
  return a.values.size(1) % inner == 0 &&
      b.values.size(0) % kMultipleOfSizes == 0;
}

/// The operands in the form that the device requires.
struct DeviceOperands {
  DeviceOperands(const Float8Matrix& a, const Float8Matrix& b) {
    const std::int64_t inner = missing_to(
        has_blocks(a, b) ? kMxBlockSize : kMultipleOfSizes, a.values.size(1));
    left = padded(a.values, 0, inner);
    right =
        padded(b.values, missing_to(kMultipleOfSizes, b.values.size(0)), inner);
  }

  [[nodiscard]] at::Tensor multiply(
      const at::Tensor& factors_a,
      const at::Tensor& factors_b,
      at::ScalarType dtype,
      bool use_fast_accum) const {
    return at::_scaled_mm(
        left,
        right.t(),
        factors_a,
        factors_b,
        /*bias=*/{},
        /*scale_result=*/{},
        dtype,
        use_fast_accum);
  }

  at::Tensor left;
  at::Tensor right;
};

// Returns the columns that `b` has. Without padding, not a view, so that
// programs can change the result of an autograd function.
at::Tensor without_padding(const at::Tensor& product, const Float8Matrix& b) {
  const std::int64_t columns = b.values.size(0);
  return product.size(1) == columns
      ? product
      : product.narrow(1, 0, columns).contiguous();
}

at::Tensor multiply_on_device(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype) {
  const DeviceOperands operands(a, b);
  const std::int64_t rows_a = operands.left.size(0);
  const std::int64_t rows_b = operands.right.size(0);
  at::Tensor product;
  if (has_blocks(a, b)) {
    product = operands.multiply(
        tiled_block_scales(a.e8m0_scales()),
        tiled_block_scales(b.e8m0_scales()),
        at::kBFloat16,
        /*use_fast_accum=*/false);
  } else if (has_scales_of_rows(a, b)) {
    // Row scales are supported only with bf16 results.
    product = operands.multiply(
        with_rows(factors_of_rows(a.scale, rows_a), rows_a),
        with_rows(factors_of_rows(b.scale, b.values.size(0)), rows_b).t(),
        at::kBFloat16,
        /*use_fast_accum=*/true);
  } else {
    product = operands.multiply(
        a.scale.reciprocal(),
        b.scale.reciprocal(),
        dtype,
        /*use_fast_accum=*/false);
  }
  return without_padding(product, b).to(dtype);
}

at::Tensor scaled_afterwards(
    const at::Tensor& product,
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype) {
  const at::Tensor factors_b = b.scale.reciprocal();
  return (product * a.scale.reciprocal() *
          (b.scale.dim() == 0 ? factors_b : factors_b.t()))
      .to(dtype);
}

at::Tensor multiply_unscaled(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype) {
  const DeviceOperands operands(a, b);
  const at::Tensor one = at::ones({}, a.scale.options().dtype(at::kFloat));
  const at::Tensor product =
      operands.multiply(one, one, at::kFloat, /*use_fast_accum=*/false);
  return scaled_afterwards(without_padding(product, b), a, b, dtype);
}

at::Tensor
emulate(const Float8Matrix& a, const Float8Matrix& b, at::ScalarType dtype) {
  // Values in float8 are exact in bf16, and so are their sums in fp32.
  const bool is_fast_in_bfloat16 =
      a.values.is_cuda() && dtype == at::kBFloat16 && !has_blocks(a, b);
  if (!is_fast_in_bfloat16)
    return at::mm(a.dequantize(), b.dequantize().t()).to(dtype);
  const at::Tensor product = at::mm(
      a.values.to(at::kBFloat16), b.values.to(at::kBFloat16).t(), at::kFloat);
  return scaled_afterwards(product, a, b, dtype);
}

// Returns codes of several magnitudes, so that wrong scales or orders are
// noticed.
at::Tensor values_to_try(c10::Device device, int first) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor numbers =
      (at::arange(64 * 64, options) * 5 + first).remainder(13).sub(6);
  const at::Tensor rows =
      at::exp2(at::arange(64, options).remainder(5).sub(2)).unsqueeze(1);
  return numbers.view({64, 64}) * rows;
}

bool is_right(Way way, const Float8Matrix& a, const Float8Matrix& b) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor found = multiply(a, b, dtype, {way, /*pads=*/true});
    const at::Tensor expected = multiply(a, b, at::kFloat, {Way::emulation});
    if (!at::allclose(found.to(at::kFloat), expected, 1e-2, 1e-2)) return false;
  }
  return true;
}

}  // namespace

at::Tensor tiled_block_scales(const at::Tensor& e8m0) {
  const std::int64_t rows = e8m0.size(0);
  const std::int64_t columns = e8m0.size(1);
  const at::Tensor bytes = at::constant_pad_nd(
      e8m0.view(at::kByte).contiguous(),
      {0, missing_to(kTileColumns, columns), 0, missing_to(kTileRows, rows)});
  return bytes
      .view(
          {bytes.size(0) / kTileRows,
           4,
           32,
           bytes.size(1) / kTileColumns,
           kTileColumns})
      .permute({0, 3, 2, 1, 4})
      .contiguous()
      .view(-1)
      .view(at::kFloat8_e8m0fnu);
}

at::Tensor multiply(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype,
    Float8Multiplier multiplier) {
  const bool is_mixed = a.block_dim.has_value() != b.block_dim.has_value();
  if (is_mixed || (!multiplier.pads && !has_device_sizes(a, b)))
    multiplier.way = Way::emulation;
  switch (multiplier.way) {
    case Way::emulation:
      return emulate(a, b, dtype);
    case Way::device:
      // Products with row scales have bf16 results.
      if (dtype == at::kFloat && !has_blocks(a, b) && has_scales_of_rows(a, b))
        return multiply_unscaled(a, b, dtype);
      return multiply_on_device(a, b, dtype);
    case Way::device_unscaled:
      return multiply_unscaled(a, b, dtype);
  }
  return {};
}

Float8Multiplier::Way probe_multiplication(
    c10::Device device,
    const DynamicCast& a,
    const DynamicCast& b) {
  if (device.is_cpu()) return Way::emulation;
  const at::NoGradGuard no_grad;
  const Float8Matrix left = cast_dynamically(values_to_try(device, 0), a, 1);
  const Float8Matrix right = cast_dynamically(values_to_try(device, 3), b, 1);
  for (const Way way : {Way::device, Way::device_unscaled}) {
    if (way == Way::device_unscaled && has_blocks(left, right)) continue;
    try {
      if (is_right(way, left, right)) return way;
    } catch (const std::exception&) {
      // LibTorch has no function that reports which devices and layouts it
      // supports.
    }
  }
  return Way::emulation;
}

}  // namespace accelerate::detail
