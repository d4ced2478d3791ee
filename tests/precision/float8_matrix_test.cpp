#include <cmath>
#include <limits>
#include <string>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "precision/fp8/float8_linear.h"
#include "precision/fp8/float8_matrix.h"
#include "support/expect_error.h"

namespace accelerate::detail {

namespace float8_matrix_test {

using at::Tensor;
using testing::expect_error;

constexpr Float8Granularity kGranularities[] = {
    Float8Granularity::tensorwise,
    Float8Granularity::axiswise,
    Float8Granularity::blocks};

Tensor bytes(const Tensor& values) { return values.view(at::kByte); }

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  torch::manual_seed(3);
  return (at::randn(sizes) * at::exp(at::randn(sizes) * 3)).to(dtype);
}

TEST(Float8Matrix, IsTheSameByKernelsAndByOperators) {
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor values = numbers({70, 45}, from);
    for (const at::ScalarType to : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const Float8Granularity granularity : kGranularities) {
        for (const bool power_of_2 : {false, true}) {
          for (const int dim : {0, 1}) {
            const DynamicCast cast{to, granularity, power_of_2};
            const Float8Matrix found = cast_dynamically(values, cast, dim);
            const Float8Matrix expected = cast_by_operators(values, cast, dim);
            SCOPED_TRACE(
                ::testing::Message()
                << c10::toString(from) << " to " << c10::toString(to)
                << " granularity " << static_cast<int>(granularity)
                << " power of 2 " << power_of_2 << " dim " << dim);
            EXPECT_TRUE(at::equal(found.scale, expected.scale));
            EXPECT_TRUE(at::equal(bytes(found.values), bytes(expected.values)));
            EXPECT_EQ(found.block_dim, expected.block_dim);
          }
        }
      }
    }
  }
}

TEST(Float8Matrix, DoesNotDependOnStridesAndThreads) {
  const Tensor values = numbers({300, 411}, at::kFloat);
  const DynamicCast rows{
      at::kFloat8_e4m3fn, Float8Granularity::axiswise, false};
  const Float8Matrix found = cast_dynamically(values, rows, 1);
  const Float8Matrix other = cast_dynamically(values.t(), rows, 0);
  EXPECT_TRUE(at::equal(bytes(found.values), bytes(other.values).t()));
  EXPECT_TRUE(at::equal(found.scale, other.scale.t()));
  const int threads = at::get_num_threads();
  const Float8Matrix random = cast_with_scale(values, at::kFloat8_e5m2, 3, 5);
  at::set_num_threads(1);
  const Float8Matrix alone = cast_with_scale(values, at::kFloat8_e5m2, 3, 5);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(bytes(random.values), bytes(alone.values)));
}

TEST(Float8Matrix, HasAScalePerBlock) {
  Tensor values = at::ones({2, 40});
  values[0][3] = 1000;
  values[1][35] = -448;
  const Float8Matrix found = cast_dynamically(
      values, {at::kFloat8_e4m3fn, Float8Granularity::blocks}, 1);
  EXPECT_TRUE(at::equal(
      found.scale, at::tensor({0.25F, 256.F, 256.F, 1.F}).view({2, 2})));
  EXPECT_EQ(found.dequantize()[0][3].item<float>(), 1024);
  EXPECT_EQ(found.dequantize()[1][35].item<float>(), -448);
  EXPECT_EQ(found.dequantize()[0][0].item<float>(), 1);
  EXPECT_TRUE(
      at::equal(found.e8m0_scales().to(at::kFloat), found.scale.reciprocal()));
}

TEST(Float8Matrix, MayBeEmpty) {
  for (const Float8Granularity granularity : kGranularities) {
    for (const int dim : {0, 1}) {
      const DynamicCast cast{at::kFloat8_e4m3fn, granularity};
      EXPECT_EQ(
          cast_dynamically(at::empty({0, 8}), cast, dim).dequantize().sizes(),
          at::IntArrayRef({0, 8}));
    }
  }
  EXPECT_EQ(amax_of(at::empty({0})), 0);
  EXPECT_TRUE(std::isnan(amax_of(at::tensor({1.F, NAN, 3.F}))));
}

TEST(Float8Matrix, RefusesOtherDtypes) {
  expect_error<ConfigError>(
      [] { float8_format(at::kHalf); }, "Half is not a float8 dtype");
}

// LibTorch multiplies tensors with one scale on CPUs, too, so that the operands'
// layouts can be tested there.
TEST(Float8Matrix, IsMultipliedByTheDevice) {
  const Tensor left = numbers({5, 24}, at::kBFloat16).clamp(-9, 9);
  const Tensor right = numbers({7, 24}, at::kBFloat16).clamp(-9, 9);
  const Float8Matrix a = cast_dynamically(left, {at::kFloat8_e5m2}, 1);
  const Float8Matrix b = cast_dynamically(right, {at::kFloat8_e4m3fn}, 1);
  const Tensor found =
      multiply(a, b, at::kBFloat16, Float8Multiplier::padding_device);
  const Tensor expected =
      multiply(a, b, at::kBFloat16, Float8Multiplier::emulation);
  EXPECT_EQ(found.sizes(), at::IntArrayRef({5, 7}));
  EXPECT_TRUE(at::allclose(found, expected, 0.02, 0.05));
  // Without zeros, only matrices of its sizes go to the device.
  EXPECT_TRUE(at::equal(
      multiply(a, b, at::kBFloat16, Float8Multiplier::device), expected));
}

}  // namespace float8_matrix_test

}  // namespace accelerate::detail
