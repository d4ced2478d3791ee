#include <cmath>
#include <limits>
#include <string>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "precision/fp8/float8_matrix.h"
#include "precision/fp8/float8_multiply.h"
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
  const Float8Matrix random =
      cast_with_scale(values, at::kFloat8_e5m2, at::full({}, 3.F), 5);
  at::set_num_threads(1);
  const Float8Matrix alone =
      cast_with_scale(values, at::kFloat8_e5m2, at::full({}, 3.F), 5);
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
  EXPECT_EQ(amax_of(at::empty({0})).item<float>(), 0);
  EXPECT_TRUE(std::isnan(amax_of(at::tensor({1.F, NAN, 3.F})).item<float>()));
}

TEST(Float8Matrix, RefusesOtherDtypes) {
  expect_error<ConfigError>([] { float8_format(at::kHalf); }, "but is Half");
}

TEST(Float8Matrix, IsRoundedAtRandomAlikeByKernelsAndByOperators) {
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16}) {
    Tensor values = numbers({70, 45}, from);
    values[3][5] = 0;
    for (const at::ScalarType to : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const Float8Granularity granularity : kGranularities) {
        // With one scale, a NaN would affect all values.
        values[4][6] = granularity == Float8Granularity::tensorwise ? 1 : NAN;
        for (const int dim : {0, 1}) {
          const DynamicCast cast{to, granularity};
          const Float8Matrix found = cast_dynamically(values, cast, dim, 77);
          const Float8Matrix expected =
              cast_by_operators(values, cast, dim, 77);
          SCOPED_TRACE(
              ::testing::Message()
              << c10::toString(from) << " to " << c10::toString(to)
              << " granularity " << static_cast<int>(granularity) << " dim "
              << dim);
          // The sign of a NaN is not defined.
          EXPECT_TRUE(at::allclose(
              found.values.to(at::kFloat),
              expected.values.to(at::kFloat),
              0,
              0,
              /*equal_nan=*/true));
          EXPECT_FALSE(at::equal(
              bytes(found.values),
              bytes(cast_dynamically(values, cast, dim).values)));
          EXPECT_FALSE(at::equal(
              bytes(found.values),
              bytes(cast_dynamically(values, cast, dim, 78).values)));
        }
      }
    }
  }
}

TEST(Float8Matrix, IsMeasuredWhileItIsCast) {
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor values = numbers({300, 411}, from).clamp(-3e4, 3e4);
    const Tensor scale = at::full({}, 2.5F);
    for (const RoundingSeed seed : {RoundingSeed(), RoundingSeed(5)}) {
      const MeasuredMatrix found =
          cast_and_measure(values, at::kFloat8_e5m2, scale, seed);
      const Float8Matrix expected =
          cast_with_scale(values, at::kFloat8_e5m2, scale, seed);
      EXPECT_TRUE(
          at::equal(bytes(found.matrix.values), bytes(expected.values)));
      EXPECT_EQ(found.amax.item<float>(), values.abs().max().item<float>());
    }
  }
}

TEST(Float8Matrix, IsRestoredByItsScales) {
  const Tensor values = numbers({70, 45}, at::kFloat);
  for (const Tensor& source :
       {values, values.narrow(1, 0, 1), values.narrow(0, 0, 1)}) {
    for (const Float8Granularity granularity : kGranularities) {
      for (const int dim : {0, 1}) {
        const Float8Matrix matrix =
            cast_dynamically(source, {at::kFloat8_e4m3fn, granularity}, dim);
        Tensor scale = matrix.scale;
        if (matrix.block_dim) {
          scale = scale.repeat_interleave(kMxBlockSize, dim)
                      .narrow(dim, 0, source.size(dim));
        }
        const Tensor expected = matrix.values.to(at::kFloat) / scale;
        EXPECT_TRUE(at::equal(matrix.dequantize(), expected));
        EXPECT_TRUE(at::equal(matrix.transposed().dequantize(), expected.t()));
      }
    }
  }
}

// LibTorch also multiplies tensors with one scale on CPUs, so the operands'
// layouts can be tested there.
TEST(Float8Matrix, IsMultipliedByTheDevice) {
  using Way = Float8Multiplier::Way;
  const Tensor left = numbers({5, 24}, at::kBFloat16).clamp(-9, 9);
  const Tensor right = numbers({7, 24}, at::kBFloat16).clamp(-9, 9);
  const Float8Matrix a = cast_dynamically(left, {at::kFloat8_e5m2}, 1);
  const Float8Matrix b = cast_dynamically(right, {at::kFloat8_e4m3fn}, 1);
  const Tensor found = multiply(a, b, at::kBFloat16, {Way::device});
  const Tensor expected = multiply(a, b, at::kBFloat16, {Way::emulation});
  EXPECT_EQ(found.sizes(), at::IntArrayRef({5, 7}));
  EXPECT_TRUE(at::allclose(found, expected, 0.02, 0.05));
  // Without padding, only matrices of supported sizes go to the device.
  EXPECT_TRUE(at::equal(
      multiply(a, b, at::kBFloat16, {Way::device, /*pads=*/false}), expected));
}

}  // namespace float8_matrix_test

}  // namespace accelerate::detail
