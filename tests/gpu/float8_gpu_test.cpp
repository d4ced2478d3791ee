// Float8 on a CUDA device: casts equal the CPU's bit for bit, hardware products
// match emulated ones, and training with each recipe behaves as on the CPU.
// `ctest -L gpu` runs these tests; without a device, or without LibTorch's CUDA
// library beside its CPU library, they are skipped with a message.
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "engines/fp8_recipe.h"
#include "engines/sources.h"
#include "precision/fp8/float8_linear.h"
#include "precision/fp8/float8_rules.h"
#include "support/float8_recipes.h"
#include "support/gpu_device.h"

namespace accelerate::detail {
namespace float8_gpu_test {

namespace nn = torch::nn;
using at::Tensor;

using Float8OnGpu = testing::OnGpu;

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

TEST_F(Float8OnGpu, CastsHaveTheBitsOfTheCpu) {
  for (const auto from : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Tensor matrix = normal({48, 96}, 1) * 3;
    matrix[0][0] = 0;
    matrix[1].zero_();
    matrix = matrix.to(from);
    for (const auto to : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const auto granularity :
           {Float8Granularity::tensorwise,
            Float8Granularity::axiswise,
            Float8Granularity::blocks}) {
        for (const int dim : {0, 1}) {
          SCOPED_TRACE(
              std::string(c10::toString(from)) + " to " + c10::toString(to) +
              " along " + std::to_string(dim));
          const DynamicCast cast{to, granularity};
          // 48 rows are one and a half blocks.
          const Float8Matrix expected = cast_dynamically(matrix, cast, dim);
          const Float8Matrix found =
              cast_dynamically(matrix.to(device_), cast, dim);
          EXPECT_TRUE(at::equal(found.scale.cpu(), expected.scale));
          EXPECT_TRUE(at::equal(
              found.values.view(at::kByte).cpu(),
              expected.values.view(at::kByte)));
        }
      }
    }
  }
}

// Runs a layer's three products on a device.
struct Products {
  Tensor output, grad_input, grad_weight;
};

Products
products_of(const Float8Rules& rules, c10::Device device, bool is_emulated) {
  const auto layer = c10::make_intrusive<Float8Layer>("layer", rules);
  if (!is_emulated) layer->probe(device);
  const auto leaf = [&](at::IntArrayRef sizes, std::uint64_t seed) {
    return normal(sizes, seed)
        .to(at::kBFloat16)
        .to(device)
        .detach()
        .requires_grad_();
  };
  const Tensor x = leaf({128, 64}, 1), weight = leaf({96, 64}, 2);
  const Tensor output = float8_product(x, weight.t(), layer);
  output.backward(normal({128, 96}, 3).to(at::kBFloat16).to(device));
  return {
      output.detach().cpu().to(at::kFloat),
      x.grad().cpu().to(at::kFloat),
      weight.grad().cpu().to(at::kFloat)};
}

void expect_near(const Tensor& found, const Tensor& expected) {
  // Both are rounded to bf16.
  EXPECT_LE(
      (found - expected).abs().max().item<double>(),
      std::ldexp(expected.abs().max().item<double>(), -7));
}

TEST_F(Float8OnGpu, MultipliesAsItsEmulation) {
  for (const auto& [name, recipe] : testing::float8_recipes_of_all_layers()) {
    SCOPED_TRACE(name);
    const RequestSources sources = testing::sources({}, {});
    const auto resolved =
        read_float8_request(recipe, sources.settings, sources.environment);
    const Float8Rules rules = std::visit(
        [](const auto& each) { return float8_rules_of(each); },
        resolved.recipe);
    const Products expected = products_of(rules, at::kCPU, true);
    for (const bool is_emulated : {true, false}) {
      const Products found = products_of(rules, device_, is_emulated);
      expect_near(found.output, expected.output);
      expect_near(found.grad_input, expected.grad_input);
      expect_near(found.grad_weight, expected.grad_weight);
    }
  }
}

std::vector<double> losses_of(const FP8Recipe& recipe, c10::Device device) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::fp8,
       .fp8_recipe = recipe,
       .world = {.rank = 0, .size = 1, .device = device}});
  nn::Sequential net(
      nn::Linear(64, 128),
      nn::GELU(),
      nn::Linear(128, 128),
      nn::GELU(),
      nn::Linear(128, 64));
  {
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (Tensor& parameter : net->parameters())
      parameter.copy_(normal(parameter.sizes(), seed++) * 0.1);
  }
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const Tensor x = normal({32, 64}, 100 + step % 4).to(device);
    const Tensor loss = at::square(model(x) - at::sin(x)).mean();
    accelerator.backward(loss);
    optimizer.step();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

TEST_F(Float8OnGpu, TrainsAsOnTheCpu) {
  for (const auto& [name, recipe] : testing::float8_recipes_of_all_layers()) {
    SCOPED_TRACE(name);
    const std::vector<double> expected = losses_of(recipe, at::kCPU);
    const std::vector<double> found = losses_of(recipe, device_);
    EXPECT_LT(expected.back(), 0.7 * expected.front());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 0.05 * expected[i]) << i;
  }
}

}  // namespace float8_gpu_test
}  // namespace accelerate::detail
