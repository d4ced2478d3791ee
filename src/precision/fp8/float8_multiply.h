#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

/// How float8 matrices are multiplied.
struct Float8Multiplier {
  enum class Way {
    /// Dequantised, in fp32; on accelerators with bf16 results, the codes in
    /// bf16, which represents all of them and their products.
    emulation,
    /// at::_scaled_mm with the scales of the matrices.
    device,
    /// at::_scaled_mm of the codes in fp32, scaled afterwards: for row scales
    /// that the device does not support.
    device_unscaled,
  };

  Way way = Way::emulation;
  /// Operands are padded with zeros if the device requires other sizes; if
  /// false, such products are emulated.
  bool pads = true;

  bool operator==(const Float8Multiplier&) const = default;
};

/// Returns a [m, k] times b [n, k] transposed, computed in fp32, in `dtype`.
/// Both must have been cast for a sum over dimension 1. Throws c10::Error if
/// the device cannot.
at::Tensor multiply(
    const Float8Matrix& a,
    const Float8Matrix& b,
    at::ScalarType dtype,
    Float8Multiplier multiplier);

/// Returns the best way to multiply matrices of these casts on `device`, found
/// by trying each with small matrices: a way must give the right result in fp32
/// and bf16. On CPUs it is emulation, since LibTorch's own products are slower.
Float8Multiplier::Way probe_multiplication(
    c10::Device device,
    const DynamicCast& a,
    const DynamicCast& b);

/// Rearranges E8M0 scales [rows, k / 32] into the order in which cuBLAS reads
/// them ("1D block scaling factors layout"): tiles of 128 rows by 4 columns,
/// where row r of a tile is at (r % 32) * 16 + (r / 32) * 4; padded with zeros.
at::Tensor tiled_block_scales(const at::Tensor& e8m0);

}  // namespace accelerate::detail
