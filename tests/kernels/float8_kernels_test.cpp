#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "kernels/emulated_kernels.h"
#include "precision/fp8/device_casts.h"
#include "precision/fp8/float8_layer.h"
#include "precision/fp8/float8_linear.h"
#include "precision/fp8/float8_matrix.h"

// The kernels for CUDA devices, run on the processor, and the code that starts
// them, against the kernels for processors: every bit is the same.

namespace accelerate::testing::float8_kernels_test {

using cuda::OnEmulatedDevice;
using detail::cast_and_measure;
using detail::cast_dynamically;
using detail::cast_with_scale;
using detail::DynamicCast;
using detail::Float8Granularity;
using detail::Float8Layer;
using detail::Float8Matrix;
using detail::Float8Rules;
using detail::MeasuredMatrix;
using detail::RoundingSeed;

// The codes, with any NaN equal to any other: processors differ in the sign of
// 0 times infinity.
inline at::Tensor bytes(const at::Tensor& values) {
  const int largest = values.scalar_type() == at::kFloat8_e5m2 ? 0x7c : 0x7e;
  const at::Tensor codes = values.view(at::kByte);
  return codes.masked_fill(codes.bitwise_and(0x7f).gt(largest), 0x7f);
}

// Equal bits, with any NaN equal to any other.
inline bool is_same(const at::Tensor& found, const at::Tensor& expected) {
  return found.sizes() == expected.sizes() &&
      at::equal(found.nan_to_num(-1), expected.nan_to_num(-1));
}

inline void expect_same(
    const Float8Matrix& found,
    const Float8Matrix& expected) {
  EXPECT_EQ(found.block_dim, expected.block_dim);
  EXPECT_TRUE(is_same(found.scale, expected.scale)) << found.scale << "\n"
                                                    << expected.scale;
  EXPECT_EQ(found.values.scalar_type(), expected.values.scalar_type());
  EXPECT_TRUE(at::equal(bytes(found.values), bytes(expected.values)));
  if (found.transposed_values.defined()) {
    EXPECT_TRUE(found.transposed_values.is_contiguous());
    EXPECT_TRUE(
        at::equal(bytes(found.transposed_values), bytes(expected.values.t())));
  }
}

// Values of all magnitudes, with zeros, a row and a column of zeros, and, if
// asked for, infinities and NaNs.
inline at::Tensor matrix_of(
    std::int64_t rows,
    std::int64_t columns,
    at::ScalarType dtype,
    bool is_finite = true) {
  at::Tensor made = at::randn({rows, columns}) *
      at::exp2(at::randint(-30, 12, {rows, columns}).to(at::kFloat));
  made.masked_fill_(at::rand({rows, columns}).lt(0.05), 0);
  if (rows > 3) made[2].zero_();
  if (columns > 3) made.select(1, 3).zero_();
  if (!is_finite) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    made[0][0] = kInfinity;
    made[rows - 1][columns / 2] = -kInfinity;
    made[rows / 2][columns - 1] = std::nanf("");
  }
  return made.to(dtype);
}

struct Size {
  std::int64_t rows;
  std::int64_t columns;
};

// Sizes around vectors (4, 8), blocks (32), tiles (64) and, for fewer rows,
// those that take several pieces.
inline std::vector<Size> sizes() {
  std::vector<Size> all;
  for (std::int64_t size = 1; size <= 40; ++size)
    all.push_back({size, (size * 23) % 41});
  for (const Size& each :
       {Size{64, 64},
        Size{128, 192},
        Size{65, 63},
        Size{96, 160},
        Size{16, 1032},
        Size{1, 4099},
        Size{300, 5}})
    all.push_back(each);
  return all;
}

constexpr std::array kValues{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
constexpr std::array kFormats{at::kFloat8_e4m3fn, at::kFloat8_e5m2};

TEST(Float8Kernels, CastLikeTheProcessorsForAllSizes) {
  torch::manual_seed(1);
  std::size_t turn = 0;
  for (const Size& size : sizes()) {
    if (size.columns == 0) continue;
    for (const auto granularity :
         {Float8Granularity::tensorwise,
          Float8Granularity::axiswise,
          Float8Granularity::blocks}) {
      for (const std::int64_t dim : {0, 1}) {
        ++turn;
        const at::ScalarType from = kValues[turn % kValues.size()];
        const at::ScalarType to = kFormats[turn / 3 % kFormats.size()];
        const RoundingSeed seed =
            turn % 5 == 0 ? RoundingSeed(turn) : RoundingSeed(std::nullopt);
        SCOPED_TRACE(
            std::string(c10::toString(from)) + " to " + c10::toString(to) +
            " " + std::to_string(size.rows) + " x " +
            std::to_string(size.columns) + " along " + std::to_string(dim));
        const DynamicCast cast{to, granularity, turn % 2 == 0};
        const at::Tensor matrix =
            matrix_of(size.rows, size.columns, from, turn % 7 != 0);
        const Float8Matrix expected = cast_dynamically(matrix, cast, dim, seed);
        OnEmulatedDevice device(turn % 4 == 1);
        const Float8Matrix found =
            cast_dynamically(matrix, cast, dim, seed, turn % 3 != 0);
        EXPECT_GT(device.num_launches, 0);
        expect_same(found, expected);
        // Products that sum over rows need no copy.
        if (granularity != Float8Granularity::tensorwise && dim == 0) {
          EXPECT_TRUE(found.transposed().values.is_contiguous());
        }
      }
    }
  }
}

TEST(Float8Kernels, CastEachDtypeAndFormatWithEachRounding) {
  torch::manual_seed(2);
  for (const at::ScalarType from : kValues) {
    for (const at::ScalarType to : kFormats) {
      for (const RoundingSeed seed :
           {RoundingSeed(std::nullopt), RoundingSeed(77)}) {
        const at::Tensor matrix = matrix_of(33, 40, from, false);
        const at::Tensor scale = at::full({}, 0.75F);
        const MeasuredMatrix expected =
            cast_and_measure(matrix, to, scale, seed);
        const OnEmulatedDevice device;
        const MeasuredMatrix found =
            cast_and_measure(matrix, to, scale, seed, true);
        expect_same(found.matrix, expected.matrix);
        EXPECT_TRUE(is_same(found.amax, expected.amax));
        EXPECT_EQ(found.matrix.transposed_values.sizes(), matrix.t().sizes());
        expect_same(
            cast_with_scale(matrix, to, scale, seed, true), expected.matrix);
        expect_same(found.matrix.transposed(), expected.matrix.transposed());
        EXPECT_TRUE(found.matrix.transposed().values.is_contiguous());
      }
    }
  }
}

// Every value that bf16 and fp16 have, at scales around the formats' borders.
TEST(Float8Kernels, RoundEveryValueOfSixteenBitsLikeTheProcessors) {
  const at::Tensor all = at::arange(-32768, 32768).to(at::kShort);
  for (const at::ScalarType from : {at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType to : kFormats) {
      for (const float scale : {1.0F, 0x1p-7F, 3.7F}) {
        const at::Tensor matrix = all.view(from).view({256, 256});
        const at::Tensor factor = at::full({}, scale);
        const Float8Matrix expected = cast_with_scale(matrix, to, factor);
        const OnEmulatedDevice device;
        expect_same(cast_with_scale(matrix, to, factor), expected);
      }
    }
  }
}

TEST(Float8Kernels, FindTheLargestValueWhereverItIs) {
  for (const at::ScalarType from : kValues) {
    for (const std::int64_t size : {1, 5, 31, 257, 5003}) {
      at::Tensor values = at::zeros({size}).to(from);
      for (const std::int64_t place : {std::int64_t{0}, size / 2, size - 1}) {
        values.zero_();
        values[place] = -3.5;
        const OnEmulatedDevice device;
        EXPECT_EQ(detail::amax_of(values).item<float>(), 3.5F);
        // Views that do not begin at a multiple of 16 bytes.
        if (place > 0) {
          EXPECT_EQ(
              detail::amax_of(values.narrow(0, 1, size - 1)).item<float>(),
              3.5F);
        }
        values[place] = std::nanf("");
        EXPECT_TRUE(std::isnan(detail::amax_of(values).item<float>()));
      }
    }
  }
}

// On a device the first cast of each kind is compared with operators.
TEST(Float8Kernels, AreFoundOutIfTheyAreWrong) {
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType to : kFormats) {
      for (const auto granularity :
           {Float8Granularity::tensorwise,
            Float8Granularity::axiswise,
            Float8Granularity::blocks}) {
        for (const bool is_random : {false, true}) {
          const auto are_right = [&] {
            return detail::device_casts_are_right(
                at::empty({0}, from), to, granularity, is_random);
          };
          {
            const OnEmulatedDevice device;
            EXPECT_TRUE(are_right());
          }
          // Kernels of the other format.
          const detail::EmulatedKernels wrong(
              [](const detail::KernelProgram& program, std::string_view entry) {
                std::string key;
                for (std::string each : program.definitions) {
                  if (each.starts_with("FORMAT="))
                    each =
                        each.ends_with("E4m3") ? "FORMAT=E5m2" : "FORMAT=E4m3";
                  key += each + " ";
                }
                return &cuda::kernel_table().at(key += entry);
              });
          EXPECT_FALSE(are_right());
        }
      }
    }
  }
  EXPECT_FALSE(detail::device_casts_are_right(
      at::empty({0}), at::kFloat8_e4m3fn, Float8Granularity::blocks, false));
}

TEST(Float8Kernels, LeaveOtherFormatsToOperators) {
  const OnEmulatedDevice device;
  (void)cast_dynamically(at::randn({4, 4}), {at::kFloat8_e4m3fnuz}, 1);
  (void)cast_dynamically(at::empty({0, 4}), {}, 1);
  EXPECT_EQ(device.num_launches, 0);
}

/// A layer's results with a recipe.
struct Results {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

inline Results results_of(const Float8Rules& rules) {
  torch::manual_seed(3);
  const auto layer = c10::make_intrusive<Float8Layer>("layer", rules);
  layer->keeps_weight = true;
  const at::Tensor input =
      at::randn({48, 64}).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = at::randn({32, 64}).requires_grad_();
  const at::Tensor output = float8_product(input, weight.t(), layer);
  return {
      output.detach(),
      torch::autograd::grad(
          {output}, {input, weight}, {at::randn({48, 32}).to(at::kBFloat16)})};
}

TEST(Float8Kernels, GiveALayerTheSameResultsWithEachRecipe) {
  const auto cast = [](Float8Granularity granularity) {
    return DynamicCast{at::kFloat8_e4m3fn, granularity};
  };
  std::vector<Float8Rules> recipes(4);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const DynamicCast how =
        cast(i == 1 ? Float8Granularity::axiswise : Float8Granularity::blocks);
    Float8Rules& rules = recipes[i];
    rules.input = rules.weight = rules.grad_output = how;
    rules.weight_for_grad_input = how;
    rules.grad_output_for_grad_weight = rules.input_for_grad_weight = how;
  }
  recipes[3].delayed = detail::DelayedScaleOptions{};
  for (const Float8Rules& rules : recipes) {
    const Results expected = results_of(rules);
    OnEmulatedDevice device;
    const Results found = results_of(rules);
    EXPECT_GT(device.num_launches, 0);
    EXPECT_TRUE(at::equal(found.output, expected.output));
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(found.gradients[i], expected.gradients[i]));
  }
}

}  // namespace accelerate::testing::float8_kernels_test
