#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "big_model/quantize/kernels/row_kernel_sets.h"

#define ACCELERATE_KERNEL

namespace accelerate::detail {

namespace {

/// Kernels for processors without dedicated ones, using the compiler's vector
/// types.
struct PortableRowKernels {
  typedef float Floats __attribute__((vector_size(16)));
  static constexpr int kGroup = kGroupColumns;

  static Floats load(const float* values) {
    Floats vector;
    std::memcpy(&vector, values, sizeof vector);
    return vector;
  }
  static void store(float* out, Floats vector) {
    std::memcpy(out, &vector, sizeof vector);
  }
  static float horizontal_sum(Floats vector) {
    return (vector[0] + vector[1]) + (vector[2] + vector[3]);
  }

  static void decode_int8(const std::int8_t* values, Floats (&weights)[8]) {
    ACCELERATE_UNROLL
    for (int p = 0; p < 8; ++p) {
      for (int lane = 0; lane < 4; ++lane)
        weights[p][lane] = values[p * 4 + lane];
    }
  }

  struct Scaled4bit {
    explicit Scaled4bit(const float* code_values) : values(code_values) {}
    void decode(const std::uint8_t* codes, float scale, Floats (&weights)[8])
        const {
      ACCELERATE_UNROLL
      for (int p = 0; p < 8; ++p) {
        const std::uint8_t first = codes[p * 2];
        const std::uint8_t second = codes[p * 2 + 1];
        weights[p] =
            Floats{
                values[first >> 4],
                values[first & 15],
                values[second >> 4],
                values[second & 15]} *
            scale;
      }
    }
    const float* values;
  };

  static std::int32_t
  dot_int8(const std::int8_t* a, const std::int8_t* b, std::int64_t count) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

#include "big_model/quantize/kernels/row_kernels.inl"
};

}  // namespace

const RowKernels* portable_row_kernels() {
  static constexpr RowKernels kKernels =
      row_kernels_of<PortableRowKernels>("portable");
  return &kKernels;
}

}  // namespace accelerate::detail

#undef ACCELERATE_KERNEL
