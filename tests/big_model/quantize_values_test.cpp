// Codes and scales of 8- and 4-bit weights.
#include <cmath>
#include <limits>
#include <random>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <rapidcheck.h>

#include <accelerate/error.h>
#include <accelerate/quantize.h>

#include "big_model/quantize/block_codes.h"
#include "big_model/quantize/codebooks.h"
#include "support/expect_error.h"

namespace accelerate {
namespace quantize_values_test {

using at::Tensor;

Tensor values_of(std::vector<std::int64_t> sizes, std::int64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const Tensor numbers = at::arange(count, at::kDouble);
  return at::sin(numbers * 0.7 + static_cast<double>(seed))
      .mul(0.3)
      .to(at::kFloat)
      .view(sizes);
}

int code_at(const QuantizedWeight& weight, std::int64_t i) {
  const int both = weight.parts().codes.view(-1)[i / 2].item<int>();
  return i % 2 == 0 ? both >> 4 : both & 15;
}

// The largest distance between neighbouring values of a codebook.
float widest_gap(QuantizationType type) {
  auto values = type == QuantizationType::nf4 ? detail::nf4_codebook()
                                              : detail::fp4_codebook();
  std::sort(values.begin(), values.end());
  float widest = 0;
  for (std::size_t i = 1; i < values.size(); ++i)
    widest = std::max(widest, values[i] - values[i - 1]);
  return widest;
}

/// A matrix of random size and a random block size.
struct Drawn {
  Tensor values;
  std::int64_t block_size = 0;
};

Drawn draw() {
  const auto rows = *rc::gen::inRange<std::int64_t>(0, 9);
  const auto columns = *rc::gen::inRange<std::int64_t>(0, 140);
  const auto seed = *rc::gen::inRange<std::int64_t>(0, 1000);
  const auto scale = *rc::gen::element(1e-6, 0.1, 1.0, 3e4);
  return {
      values_of({rows, columns}, seed) * scale,
      *rc::gen::inRange<std::int64_t>(1, 150)};
}

TEST(QuantizedValues, NoValueIsFurtherThanHalfAGapFromItsCode) {
  EXPECT_TRUE(rc::check([] {
    const Drawn drawn = draw();
    const auto type =
        *rc::gen::element(QuantizationType::nf4, QuantizationType::fp4);
    const QuantizedWeight weight(
        drawn.values, {.type = type, .block_size = drawn.block_size});
    const Tensor found = weight.dequantize();
    RC_ASSERT(found.sizes() == drawn.values.sizes());
    const Tensor before = drawn.values.flatten();
    const Tensor after = found.flatten();
    for (std::int64_t i = 0; i < before.numel(); i += drawn.block_size) {
      const std::int64_t end = std::min(i + drawn.block_size, before.numel());
      const Tensor block = before.slice(0, i, end);
      const double largest = block.abs().max().item<double>();
      const double error =
          (after.slice(0, i, end) - block).abs().max().item<double>();
      RC_ASSERT(error <= largest * widest_gap(type) / 2 * 1.0001);
    }
  }));
}

TEST(QuantizedValues, QuantisingDequantisedValuesChangesNoCode) {
  EXPECT_TRUE(rc::check([] {
    const Drawn drawn = draw();
    const auto type =
        *rc::gen::element(QuantizationType::nf4, QuantizationType::fp4);
    const QuantizeWeightOptions options{
        .type = type, .block_size = drawn.block_size};
    const QuantizedWeight once(drawn.values, options);
    const QuantizedWeight twice(once.dequantize(), options);
    RC_ASSERT(at::equal(once.parts().absmax, twice.parts().absmax));
    RC_ASSERT(at::equal(once.dequantize(), twice.dequantize()));
  }));
}

TEST(QuantizedValues, Int8RowsAreWithinHalfAStep) {
  EXPECT_TRUE(rc::check([] {
    const Drawn drawn = draw();
    const Tensor values = drawn.values.to(at::kHalf);
    const QuantizedWeight weight(values, {.type = QuantizationType::int8});
    const Tensor before = values.to(at::kFloat);
    const Tensor after = weight.dequantize(at::kFloat);
    for (std::int64_t row = 0; row < before.size(0); ++row) {
      if (before.size(1) == 0) continue;
      const double step = before[row].abs().max().item<double>() / 127;
      const double error =
          (after[row] - before[row]).abs().max().item<double>();
      RC_ASSERT(error <= step / 2 * 1.0001);
    }
  }));
}

TEST(QuantizedValues, DoubleQuantisationStaysCloseToSimpleOne) {
  EXPECT_TRUE(rc::check([] {
    const Drawn drawn = draw();
    const QuantizedWeight simple(
        drawn.values, {.block_size = drawn.block_size});
    const QuantizedWeight nested(
        drawn.values, {.block_size = drawn.block_size, .double_quant = true});
    RC_ASSERT(at::equal(simple.parts().codes, nested.parts().codes));
    if (drawn.values.numel() == 0) return;
    const Tensor scales = simple.parts().absmax;
    // Half the widest gap of the 8-bit map, times the spread of the scales.
    const double allowed =
        (scales - scales.mean()).abs().max().item<double>() * 0.0072 +
        scales.max().item<double>() * 1e-6;
    const double error =
        (simple.dequantize() - nested.dequantize()).abs().max().item<double>();
    RC_ASSERT(error <= allowed);
  }));
}

TEST(QuantizedValues, TiesGoToTheSmallerValue) {
  const auto& values = detail::nf4_codebook();
  for (std::size_t code = 0; code + 1 < values.size(); ++code) {
    const float middle = (values[code] + values[code + 1]) / 2;
    const QuantizedWeight weight(
        at::tensor({1.0f, middle, std::nextafter(middle, 2.0f)}),
        {.block_size = 3});
    EXPECT_EQ(code_at(weight, 0), 15);
    EXPECT_EQ(code_at(weight, 1), static_cast<int>(code));
    EXPECT_EQ(code_at(weight, 2), static_cast<int>(code) + 1);
  }
}

TEST(QuantizedValues, Int8RoundsHalvesToEven) {
  const QuantizedWeight weight(
      at::tensor({127.0f, 0.5f, 1.5f, -2.5f, 3.5f}).view({1, 5}),
      {.type = QuantizationType::int8});
  EXPECT_TRUE(at::equal(
      weight.parts().codes,
      at::tensor({127, 0, 2, -2, 4}, at::kChar).view({1, 5})));
  EXPECT_EQ(weight.parts().absmax.item<float>(), 127);
}

TEST(QuantizedValues, AnOddNumberOfElementsEndsWithHalfAByte) {
  const Tensor values = at::tensor({1.0f, -1.0f, 0.0f});
  const QuantizedWeight weight(values, {.block_size = 2});
  EXPECT_EQ(weight.parts().codes.numel(), 2);
  EXPECT_EQ(weight.parts().absmax.numel(), 2);
  EXPECT_EQ(code_at(weight, 0), 15);
  EXPECT_EQ(code_at(weight, 1), 0);
  EXPECT_EQ(code_at(weight, 2), 7);
  EXPECT_TRUE(at::equal(weight.dequantize(), values));
}

TEST(QuantizedValues, TensorsWithoutElementsAreQuantised) {
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{0}, {0, 5}, {5, 0}, {2, 0, 3}}) {
    for (const bool double_quant : {false, true}) {
      const QuantizedWeight weight(
          at::empty(sizes), {.double_quant = double_quant});
      EXPECT_EQ(weight.dequantize().sizes(), at::IntArrayRef(sizes));
    }
  }
  const QuantizedWeight weight(
      at::empty({0, 4}), {.type = QuantizationType::int8});
  EXPECT_EQ(weight.linear(at::ones({3, 4})).sizes(), at::IntArrayRef({3, 0}));
}

TEST(QuantizedValues, BlocksOfZerosAreZero) {
  for (const auto type :
       {QuantizationType::int8, QuantizationType::nf4, QuantizationType::fp4}) {
    const QuantizedWeight weight(at::zeros({3, 70}), {.type = type});
    EXPECT_TRUE(at::equal(weight.dequantize(), at::zeros({3, 70})));
  }
}

TEST(QuantizedValues, ThreadsChangeNothing) {
  const Tensor values = values_of({300, 1111}, 3);
  const QuantizedWeight one = [&] {
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const QuantizedWeight weight(values, {.block_size = 100});
    at::set_num_threads(threads);
    return weight;
  }();
  const QuantizedWeight many(values, {.block_size = 100});
  EXPECT_TRUE(at::equal(one.parts().codes, many.parts().codes));
  EXPECT_TRUE(at::equal(one.parts().absmax, many.parts().absmax));
}

TEST(QuantizedValues, Nf4WithDoubleQuantisationTakesALittleMoreThanHalfAByte) {
  const QuantizedWeight weight(
      values_of({2048, 1024}, 1), {.double_quant = true});
  const double bytes = static_cast<double>(weight.num_bytes()) / (2048 * 1024);
  EXPECT_LE(bytes, 0.53);
  EXPECT_GT(bytes, 0.5);
}

TEST(QuantizedValues, WhatCannotBeQuantisedIsRefused) {
  using testing::expect_error;
  expect_error<ConfigError>(
      [] { QuantizedWeight(at::zeros({2, 2}, at::kDouble)); },
      "to be quantised, but is torch.float64");
  expect_error<ConfigError>(
      [] { QuantizedWeight(at::zeros({2, 2}), {.block_size = 0}); },
      "block_size must be at least 1, but is 0");
  expect_error<ConfigError>(
      [] { QuantizedWeight(at::zeros({4}), {.type = QuantizationType::int8}); },
      "1 dimensions; use nf4 or fp4");
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    for (const auto type : {QuantizationType::int8, QuantizationType::nf4}) {
      expect_error<ConfigError>(
          [&] { QuantizedWeight(at::full({2, 3}, bad), {.type = type}); },
          "infinite or NaN values");
    }
  }
}

}  // namespace quantize_values_test
}  // namespace accelerate
