#include "big_model/quantize/kernels/row_kernels.h"

#include <algorithm>
#include <array>

#include "big_model/quantize/kernels/row_kernel_sets.h"

namespace accelerate::detail {

namespace {

struct SupportedKernels {
  SupportedKernels() {
    for (const RowKernels* kernels :
         {avx512_row_kernels(), avx2_row_kernels(), portable_row_kernels()}) {
      if (kernels != nullptr) sets[count++] = kernels;
    }
  }
  std::array<const RowKernels*, 3> sets{};
  std::size_t count = 0;
};

}  // namespace

std::span<const RowKernels* const> supported_row_kernels() {
  static const SupportedKernels supported;
  return std::span(supported.sets).first(supported.count);
}

PackedInputs
packed_inputs(const float* x, std::int64_t num_inputs, std::int64_t columns) {
  const std::int64_t num_groups = (columns + kGroupColumns - 1) / kGroupColumns;
  PackedInputs packed(num_groups * num_inputs * kGroupColumns);
  for (std::int64_t i = 0; i < num_inputs; ++i) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      const float* const from = x + i * columns + g * kGroupColumns;
      std::copy_n(
          from,
          std::min(kGroupColumns, columns - g * kGroupColumns),
          packed.data() + (g * num_inputs + i) * kGroupColumns);
    }
  }
  return packed;
}

const RowKernels& row_kernels() { return *supported_row_kernels().front(); }

}  // namespace accelerate::detail
