// Multiplication by quantized weights with every set of kernels.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <rapidcheck.h>
#include <torch/csrc/autograd/autograd.h>

#include <accelerate/error.h>
#include <accelerate/quantize.h>

#include "big_model/quantize/kernels/row_kernels.h"
#include "big_model/quantize/quantized_weight.h"
#include "support/expect_error.h"

namespace accelerate {
namespace quantize_products_test {

using at::Tensor;
using detail::RowKernels;

Tensor values_of(std::vector<std::int64_t> sizes, double seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return at::sin(at::arange(count, at::kDouble) * 0.7 + seed)
      .to(at::kFloat)
      .view(sizes);
}

const std::vector<QuantizationType>& all_types() {
  static const std::vector<QuantizationType> types{
      QuantizationType::int8, QuantizationType::nf4, QuantizationType::fp4};
  return types;
}

// Rounding error of a sum of products of values up to 1.
double allowed_error(std::int64_t columns) {
  return 1e-6 * static_cast<double>(columns + 8);
}

double difference(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

Tensor multiplied_by(
    const RowKernels& kernels,
    const Tensor& x,
    const QuantizedWeight& weight) {
  const std::int64_t rows = weight.sizes()[0];
  const Tensor out = at::full({x.size(0), rows}, 99.0f);
  const bool is_int8 = weight.type() == QuantizationType::int8;
  const float* const inputs = x.const_data_ptr<float>();
  const detail::PackedInputs packed = is_int8
      ? detail::packed_inputs(inputs, x.size(0), x.size(1))
      : kernels.inputs_for_4bit(
            detail::four_bit_rows(weight), inputs, x.size(0));
  detail::RowProduct product;
  product.x = packed.data();
  product.num_inputs = x.size(0);
  product.end = rows;
  product.out = out.mutable_data_ptr<float>();
  product.out_stride = rows;
  if (is_int8) {
    kernels.multiply_int8(detail::int8_rows(weight), product);
  } else {
    kernels.multiply_4bit(detail::four_bit_rows(weight), product);
  }
  return out;
}

TEST(QuantizedKernels, EverySetMultipliesByTheDequantisedMatrix) {
  EXPECT_TRUE(rc::check([] {
    const auto rows = *rc::gen::inRange<std::int64_t>(1, 40);
    const auto columns = *rc::gen::element<std::int64_t>(
        1, 7, 31, 32, 33, 64, 96, 100, 128, 256, 640, 4096, 4096 + 32);
    const auto num_inputs =
        *rc::gen::inRange<std::int64_t>(1, detail::kMostInputs + 1);
    QuantizeWeightOptions options;
    options.type = *rc::gen::elementOf(all_types());
    options.block_size =
        *rc::gen::element<std::int64_t>(1, 5, 32, 64, 128, 256, 1024, 100);
    options.double_quant = *rc::gen::arbitrary<bool>();
    const QuantizedWeight weight(values_of({rows, columns}, 1), options);
    const Tensor x = values_of({num_inputs, columns}, 2);
    const Tensor expected = at::mm(
        x.to(at::kDouble), weight.dequantize(at::kFloat).to(at::kDouble).t());
    for (const RowKernels* kernels : detail::supported_row_kernels()) {
      RC_ASSERT(
          difference(multiplied_by(*kernels, x, weight), expected) <=
          allowed_error(columns));
    }
  }));
}

TEST(QuantizedKernels, EverySetDequantisesToTheSameValues) {
  const auto sets = detail::supported_row_kernels();
  for (const std::int64_t block_size : {1, 3, 32, 64, 100}) {
    for (const bool double_quant : {false, true}) {
      const QuantizedWeight weight(
          values_of({7, 77}, 3),
          {.block_size = block_size, .double_quant = double_quant});
      const auto rows = detail::four_bit_rows(weight);
      // Also begins in the middle of a byte and of a block.
      for (const std::int64_t begin : {0, 1, 78, 131}) {
        const std::int64_t count = 7 * 77 - begin - 5;
        std::vector<std::vector<float>> found;
        for (const RowKernels* kernels : sets) {
          found.emplace_back(static_cast<std::size_t>(count));
          kernels->dequantize_4bit(rows, begin, count, found.back().data());
        }
        const Tensor expected =
            weight.dequantize().flatten().slice(0, begin, begin + count);
        for (const auto& values : found)
          EXPECT_LE(
              difference(at::tensor(values), expected),
              double_quant ? 1e-7 : 0);
      }
    }
  }
}

TEST(QuantizedKernels, ProductsOfInt8AreExact) {
  const std::int64_t columns = 100;
  const Tensor a = at::remainder(at::arange(3 * columns) * 37, 255)
                       .sub(127)
                       .to(at::kChar)
                       .view({3, columns});
  const Tensor b = at::remainder(at::arange(5 * columns) * 91, 255)
                       .sub(127)
                       .to(at::kChar)
                       .view({5, columns});
  const Tensor expected =
      at::mm(a.to(at::kLong), b.to(at::kLong).t()).to(at::kInt);
  for (const RowKernels* kernels : detail::supported_row_kernels()) {
    const Tensor out = at::zeros({3, 5}, at::kInt);
    kernels->multiply_int8_int8(
        a.const_data_ptr<std::int8_t>(),
        3,
        b.const_data_ptr<std::int8_t>(),
        5,
        columns,
        out.mutable_data_ptr<std::int32_t>());
    EXPECT_TRUE(at::equal(out, expected)) << kernels->name;
  }
}

TEST(QuantizedProducts, AnyNumberOfInputsIsMultipliedByTheDequantisedMatrix) {
  for (const QuantizationType type : all_types()) {
    const QuantizedWeight weight(
        values_of({50, 96}, 1), {.type = type, .double_quant = true});
    const Tensor values = weight.dequantize();
    const Tensor bias = values_of({50}, 5);
    for (const std::int64_t count : {0, 1, 7, 8, 9, 24, 25, 32, 33, 200}) {
      const Tensor x = values_of({count, 96}, 2);
      EXPECT_LE(
          difference(weight.linear(x, bias), at::linear(x, values, bias)),
          allowed_error(96));
    }
    const Tensor x = values_of({2, 3, 96}, 4);
    EXPECT_LE(
        difference(weight.linear(x), at::linear(x, values)), allowed_error(96));
    const Tensor vector = values_of({96}, 4);
    EXPECT_LE(
        difference(weight.linear(vector), at::linear(vector, values)),
        allowed_error(96));
  }
}

TEST(QuantizedProducts, ResultsHaveTheDtypeOfTheInput) {
  const QuantizedWeight weight(values_of({8, 64}, 1));
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const Tensor x = values_of({3, 64}, 2).to(dtype);
    const Tensor found = weight.linear(x);
    EXPECT_EQ(found.scalar_type(), dtype);
    const Tensor exact = at::linear(x.to(at::kFloat), weight.dequantize());
    EXPECT_LE(difference(found, exact.to(dtype)), 0.03);
  }
}

TEST(QuantizedProducts, ThreadsChangeNoBit) {
  const QuantizedWeight weight(values_of({300, 512}, 1));
  const Tensor x = values_of({4, 512}, 2);
  const Tensor many = weight.linear(x);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensor one = weight.linear(x);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, many));
}

TEST(QuantizedProducts, GradientsAreThoseOfTheDequantisedMatrix) {
  for (const QuantizationType type : all_types()) {
    const QuantizedWeight weight(values_of({20, 33}, 1), {.type = type});
    const Tensor values = weight.dequantize();
    const auto gradients = [&](bool quantized) {
      const Tensor x = values_of({4, 33}, 2).requires_grad_();
      const Tensor bias = values_of({20}, 3).requires_grad_();
      const Tensor out =
          quantized ? weight.linear(x, bias) : at::linear(x, values, bias);
      return torch::autograd::grad({out.pow(2).sum()}, {x, bias});
    };
    const auto found = gradients(true);
    const auto expected = gradients(false);
    EXPECT_LE(difference(found[0], expected[0]), 1e-4);
    EXPECT_LE(difference(found[1], expected[1]), 1e-4);
  }
}

TEST(QuantizedProducts, SecondGradientsAreThoseOfTheDequantisedMatrix) {
  const QuantizedWeight weight(values_of({5, 8}, 1));
  const auto second = [&](const auto& product) {
    const Tensor x = values_of({2, 8}, 2).requires_grad_();
    const Tensor first =
        torch::autograd::grad({product(x).pow(3).sum()}, {x}, {}, true, true)
            .front();
    return torch::autograd::grad({first.pow(2).sum()}, {x}).front();
  };
  const Tensor values = weight.dequantize();
  const Tensor found =
      second([&](const Tensor& x) { return weight.linear(x); });
  const Tensor expected =
      second([&](const Tensor& x) { return at::linear(x, values); });
  EXPECT_LE(
      difference(found, expected), 1e-3 * expected.abs().max().item<double>());
}

TEST(LlmInt8, ColumnsWithOutliersAreExact) {
  Tensor x = values_of({4, 64}, 2);
  x[1][5] = 50;
  const QuantizedWeight weight(
      values_of({16, 64}, 1), {.type = QuantizationType::int8});
  const Tensor exact = weight.linear(x);
  const double with = difference(llm_int8_linear(x, weight, 6.0), exact);
  const double without = difference(llm_int8_linear(x, weight, 0), exact);
  EXPECT_LT(with, 0.1);
  EXPECT_GT(without, 2 * with);
}

TEST(LlmInt8, OtherWeightsAreRefused) {
  testing::expect_error<ConfigError>(
      [] {
        static_cast<void>(llm_int8_linear(
            at::ones({1, 4}), QuantizedWeight(at::ones({4, 4}))));
      },
      "must be int8, but is nf4");
}

TEST(QuantizedProducts, InputsOfAnotherSizeAreRefused) {
  const QuantizedWeight weight(at::ones({4, 6}));
  testing::expect_error<ConfigError>(
      [&] { static_cast<void>(weight.linear(at::ones({2, 5}))); },
      "an input must have as many columns as the quantised weight, but has 5 "
      "instead of 6");
}

}  // namespace quantize_products_test
}  // namespace accelerate
