#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

/// How float8 matrices are multiplied.
struct Float8Multiplier {
  enum class Way {
    /// Dequantised, in fp32; on accelerators whose results are bf16, the codes
    /// in bf16, which has all of them and their products.
    emulation,
    /// at::_scaled_mm with the scales of the matrices.
    device,
    /// at::_scaled_mm of the codes, in fp32, whose result is scaled afterwards:
    /// for scales of rows that the device does not take.
    device_unscaled,
  };

  Way way = Way::emulation;
  /// Operands get zeros where the device wants other sizes; else those are
  /// emulated.
  bool pads = true;

  bool operator==(const Float8Multiplier&) const = default;
};

/// a [m, k] times b [n, k] transposed, in fp32 and then `dtype`. Scales are
/// those of casts along dimension 1 of both. Throws c10::Error if the device
/// cannot.
at::Tensor multiply(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype,
    Float8Multiplier multiplier);

/// The best way that `device` has to multiply matrices of these casts, found by
/// trying each with small ones: a way must give the right result in fp32 and
/// bf16. On CPUs it is emulation, by which LibTorch's own products are slower.
Float8Multiplier::Way probe_multiplication(
    c10::Device device,
    const DynamicCast& a,
    const DynamicCast& b);

/// E8M0 scales [rows, k / 32] in the order in which cuBLAS reads them ("1D block
/// scaling factors layout"): tiles of 128 rows by 4 columns, where row r of a
/// tile lies at (r % 32) * 16 + (r / 32) * 4; filled up with zeros.
at::Tensor tiled_block_scales(const at::Tensor& e8m0);

}  // namespace accelerate::detail
