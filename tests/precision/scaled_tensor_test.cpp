#include "precision/fp8/scaled_tensor.h"

#include <cmath>
#include <limits>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace scaled_tensor_test {

using at::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float scale_for(float amax, at::ScalarType dtype) {
  return powers_of_2_for(at::full({}, amax, at::kFloat), dtype).item<float>();
}

TEST(ScaledTensor, HasTheLargestPowerOfTwoThatFits) {
  EXPECT_EQ(scale_for(1, at::kFloat8_e4m3fn), 256);
  EXPECT_EQ(scale_for(1.75, at::kFloat8_e4m3fn), 256);
  EXPECT_EQ(
      scale_for(std::nextafter(1.75F, kInfinity), at::kFloat8_e4m3fn), 128);
  EXPECT_EQ(scale_for(448, at::kFloat8_e4m3fn), 1);
  EXPECT_EQ(scale_for(1e6, at::kFloat8_e4m3fn), 0x1p-12F);
  EXPECT_EQ(scale_for(1, at::kFloat8_e5m2), 32768);
  EXPECT_EQ(scale_for(65504, at::kHalf), 1);
  EXPECT_EQ(scale_for(std::nextafter(65504.F, kInfinity), at::kHalf), 0.5);
  EXPECT_EQ(scale_for(0, at::kHalf), 1);
  EXPECT_EQ(scale_for(0x1p-140F, at::kHalf), 0x1p115F);
  EXPECT_TRUE(std::isnan(scale_for(kInfinity, at::kFloat8_e4m3fn)));
  EXPECT_TRUE(std::isnan(scale_for(kNaN, at::kHalf)));
}

// Rounds by LibTorch's own casts.
Tensor rounded(const Tensor& x, double largest, at::ScalarType dtype) {
  const double amax = x.abs().max().item<double>();
  const double scale =
      amax == 0 ? 1 : std::exp2(std::floor(std::log2(largest / amax)));
  return (x.to(at::kDouble) * scale).to(at::kFloat).to(dtype).to(at::kDouble) /
      scale;
}

TEST(ScaledTensor, RoundsToNearest) {
  torch::manual_seed(5);
  for (const double size : {1e-9, 1.0, 3e7}) {
    for (const at::ScalarType from : {at::kFloat, at::kBFloat16}) {
      const Tensor x = (torch::randn({33, 7}) * size).to(from);
      EXPECT_TRUE(at::equal(
          cast_scaled(x, at::kFloat8_e4m3fn).restore(at::kDouble),
          rounded(x, 448, at::kFloat8_e4m3fn)));
      EXPECT_TRUE(at::equal(
          cast_scaled(x, at::kHalf).restore(at::kDouble),
          rounded(x, 65504, at::kHalf)));
    }
  }
}

TEST(ScaledTensor, KeepsWhatItHasRestored) {
  torch::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kHalf}) {
    for (const double top : {0.99, 1.0, 1.01, 1.02, 1.7}) {
      Tensor x = torch::randn({64}) * 1e-3;
      x[3] = top;
      const Tensor once = cast_scaled(x, dtype).restore(at::kFloat);
      EXPECT_TRUE(
          at::equal(cast_scaled(once, dtype).restore(at::kFloat), once));
    }
  }
}

TEST(ScaledTensor, IsAllNaNIfAValueIsNotFinite) {
  for (const float value : {kInfinity, -kInfinity, kNaN}) {
    for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kHalf}) {
      const ScaledTensor cast = cast_scaled(torch::tensor({1.F, value}), dtype);
      EXPECT_TRUE(at::isnan(cast.restore(at::kFloat)).all().item<bool>());
    }
  }
}

TEST(ScaledTensor, TakesShapesThatAreNotMatrices) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{}, {5}, {2, 3, 4}, {0}}) {
    const Tensor x = torch::ones(shape);
    const ScaledTensor cast = cast_scaled(x, at::kFloat8_e4m3fn);
    EXPECT_EQ(cast.values.sizes(), x.sizes());
    EXPECT_TRUE(at::equal(cast.restore(at::kFloat), x));
  }
  const Tensor transposed = torch::arange(6.F).view({2, 3}).t();
  EXPECT_TRUE(at::equal(
      cast_scaled(transposed, at::kFloat8_e4m3fn).restore(at::kFloat),
      transposed));
}

}  // namespace scaled_tensor_test
}  // namespace accelerate::detail
