#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/precision.h>

#include "gate/gate.h"
#include "gate/watched_tensor.h"
#include "precision/fp8/float8_keeper.h"
#include "precision/fp8/float8_linear.h"
#include "precision/fp8/float8_rules.h"

namespace accelerate::detail {

namespace float8_linear_test {

namespace nn = torch::nn;
using at::Tensor;

TERecipeKwargs delayed(OverrideLinearPrecision high = {}) {
  return {false, 0, 1, "HYBRID", 4, "most_recent", high, false};
}

struct Watched {
  explicit Watched(const Float8Rules& rules, bool only_in_forwards = false)
      : keeper(std::make_shared<Float8Keeper>(only_in_forwards)) {
    torch::manual_seed(7);
    linear = nn::Linear(16, 32);
    plain = nn::Linear(16, 32);
    {
      const torch::NoGradGuard no_grad;
      plain->weight.copy_(linear->weight);
      plain->bias.copy_(linear->bias);
    }
    const std::size_t unit = keeper->add(
        c10::make_intrusive<Float8Layer>("linear", rules), {32, 16});
    watch_tensor(linear->weight, {keeper, unit, keeper.get()});
  }

  [[nodiscard]] DelayedTensor& tensor(Float8Layer::Role role) const {
    return *keeper->layers().front()->delayed[role];
  }

  std::shared_ptr<Float8Keeper> keeper;
  nn::Linear linear = nullptr;
  nn::Linear plain = nullptr;
};

Tensor rounded(const Tensor& x, const DynamicCast& cast, int dim) {
  return cast_dynamically(x, cast, dim).dequantize();
}

TEST(Float8Linear, ComputesAllThreeProductsWithCastOperands) {
  const AORecipeKwargs recipe{Float8LinearConfig{}};
  Watched layer(float8_rules_of(recipe));
  const Tensor x = at::randn({3, 5, 16}).requires_grad_();
  const Tensor grad = at::randn({3, 5, 32});
  const Tensor output = layer.linear(x);
  output.backward(grad);

  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(layer.linear(x), output));
  }
  const DynamicCast e4m3{at::kFloat8_e4m3fn};
  const DynamicCast e5m2{at::kFloat8_e5m2};
  const Tensor matrix = x.detach().view({15, 16});
  const Tensor weight = layer.plain->weight.detach();
  const Tensor grads = grad.view({15, 32});
  const Tensor expected =
      at::mm(rounded(matrix, e4m3, 1), rounded(weight, e4m3, 1).t()) +
      layer.plain->bias.detach();
  EXPECT_TRUE(at::equal(output.detach().view({15, 32}), expected));
  EXPECT_TRUE(at::allclose(
      x.grad().view({15, 16}),
      at::mm(rounded(grads, e5m2, 1), rounded(weight, e4m3, 0)),
      1e-6,
      1e-6));
  EXPECT_TRUE(at::allclose(
      layer.linear->weight.grad(),
      at::mm(rounded(grads, e5m2, 0).t(), rounded(matrix, e4m3, 0)),
      1e-6,
      1e-6));
  EXPECT_TRUE(at::allclose(layer.linear->bias.grad(), grads.sum(0)));
  EXPECT_FALSE(at::equal(expected, layer.plain(matrix)));
}

// Rows are cast alike whatever the dimensions above them, and results may be
// changed in place, as those of a plain layer.
TEST(Float8Linear, TakesInputsOfAnyDimensions) {
  const Float8Rules rules =
      float8_rules_of(AORecipeKwargs{Float8LinearConfig{}});
  std::vector<std::vector<std::int64_t>> shapes{
      {16}, {3, 16}, {2, 3, 16}, {2, 1, 3, 16}};
  for (const auto& shape : shapes) {
    for (const bool has_bias : {true, false}) {
      Watched layer(rules);
      const auto forward = [&](const Tensor& x) {
        return has_bias ? layer.linear(x)
                        : at::matmul(x, layer.linear->weight.t());
      };
      const Tensor input = at::randn(shape);
      const auto uses = [&](const auto& call) {
        std::vector<Tensor> results;
        const Tensor scale = at::full({}, 3.F).requires_grad_();
        Tensor output;
        {
          const torch::NoGradGuard no_grad;
          output = call(input);
        }
        results.push_back(output.mul_(scale).detach().clone());
        for (int i = 0; i < 2; ++i) {
          const Tensor x = input.clone().requires_grad_();
          layer.linear->zero_grad();
          output = call(x);
          output.mul_(2).add_(1);
          output.square().sum().backward();
          results.push_back(output.detach().clone());
          results.push_back(x.grad());
          results.push_back(layer.linear->weight.grad().clone());
        }
        return results;
      };
      const auto got = uses(forward);
      const auto want = uses([&](const Tensor& x) {
        std::vector<std::int64_t> sizes = shape;
        sizes.back() = 32;
        // A copy, since a view that was made without gradients could not be
        // changed in place.
        return forward(x.reshape({-1, 16})).reshape(sizes).clone();
      });
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-6))
            << shape.size() << "-D, " << (has_bias ? "bias, " : "") << i;
      }
    }
  }
}

TEST(Float8Linear, ComputesInTheDtypeOfAutocast) {
  Watched layer(float8_rules_of(AORecipeKwargs{Float8LinearConfig{}}));
  const Tensor x = at::randn({4, 16}).requires_grad_();
  Tensor output;
  {
    const AutocastScope autocast(at::kCPU, at::kBFloat16);
    output = layer.linear(x);
  }
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  output.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(layer.linear->weight.grad().scalar_type(), at::kFloat);
}

TEST(Float8Linear, TakesDelayedScalesFromEarlierSteps) {
  Watched layer(float8_rules_of(delayed()));
  const auto step = [&](float size) {
    const Tensor x = at::full({2, 16}, size).requires_grad_();
    layer.linear->zero_grad();
    const Tensor output = layer.linear(x);
    (output * 3).sum().backward();
    for (const auto role :
         {Float8Layer::input, Float8Layer::weight, Float8Layer::grad_output}) {
      DelayedTensor& tensor = layer.tensor(role);
      tensor.update(tensor.take_amax().first);
    }
    return output.detach();
  };
  // With the scale 1, 1000 saturates at 448.
  const Tensor weight = layer.plain->weight.detach();
  const auto product = [&](float size, float scale_of_weight) {
    const Tensor w =
        cast_with_scale(
            weight, at::kFloat8_e4m3fn, at::full({}, scale_of_weight))
            .dequantize();
    return at::mm(at::full({2, 16}, size), w.t()) + layer.plain->bias.detach();
  };
  EXPECT_TRUE(at::equal(step(1000), product(448, 1)));
  const float amax = weight.abs().max().item<float>();
  EXPECT_EQ(layer.tensor(Float8Layer::input).scale().scale(), 448.0F / 1000);
  EXPECT_EQ(layer.tensor(Float8Layer::weight).scale().scale(), 448.0F / amax);
  EXPECT_EQ(
      layer.tensor(Float8Layer::grad_output).scale().scale(), 57344.0F / 3);
  EXPECT_TRUE(
      at::allclose(step(1000), product(1000, 448.0F / amax), 1e-5, 1e-3));
}

TEST(Float8Linear, CountsLargestValuesOfForwardsWithABackward) {
  Watched layer(float8_rules_of(delayed()));
  const auto take = [&] {
    std::vector<float> taken;
    for (const auto role :
         {Float8Layer::input, Float8Layer::weight, Float8Layer::grad_output})
      taken.push_back(layer.tensor(role).take_amax().first);
    return taken;
  };
  const auto weight = layer.plain->weight.abs().max().item<float>();
  {
    const torch::NoGradGuard no_grad;
    static_cast<void>(layer.linear(at::full({2, 16}, 900.F)));
  }
  EXPECT_THAT(take(), ::testing::ElementsAre(0, 0, 0));
  // An evaluation with gradients enabled, but without a backward.
  static_cast<void>(layer.linear(at::full({2, 16}, 900.F)));
  EXPECT_THAT(take(), ::testing::ElementsAre(0, 0, 0));
  layer.linear(at::full({2, 16}, 2.F)).sum().backward();
  EXPECT_THAT(take(), ::testing::ElementsAre(2, weight, 1));
  // A layer in front of all trained layers.
  layer.linear->weight.requires_grad_(false);
  static_cast<void>(layer.linear(at::full({2, 16}, 3.F)));
  EXPECT_THAT(take(), ::testing::ElementsAre(3, weight, 0));
}

TEST(Float8Linear, CastsAWeightOncePerStep) {
  Watched layer(float8_rules_of(AORecipeKwargs{Float8LinearConfig{}}));
  const auto& unit = layer.keeper->layers().front();
  unit->keeps_weight = true;
  const Tensor x = at::randn({4, 16});
  const DynamicCast how{at::kFloat8_e4m3fn};
  const Tensor weight = layer.linear->weight.detach();
  const auto kept = [&] {
    const BypassGates bypass;
    return unit->cast_weight(weight, how, 1).matrix.values;
  };
  const Tensor first = kept();
  layer.linear(x).sum().backward();
  EXPECT_TRUE(kept().is_same(first));
  {
    const torch::NoGradGuard no_grad;
    layer.linear->weight.mul_(2);
    layer.plain->weight.mul_(2);
  }
  Watched fresh(float8_rules_of(AORecipeKwargs{Float8LinearConfig{}}));
  {
    const torch::NoGradGuard no_grad;
    fresh.linear->weight.mul_(2);
  }
  EXPECT_TRUE(at::equal(layer.linear(x), fresh.linear(x)));
  const Tensor second = kept();
  EXPECT_FALSE(second.is_same(first));
  unit->forget_weight();
  EXPECT_FALSE(kept().is_same(second));
}

TEST(Float8Linear, LeavesOverriddenProductsInHighPrecision) {
  Watched all(float8_rules_of(delayed({true, true, true})));
  Watched none(float8_rules_of(delayed()));
  for (Watched* layer : {&all, &none}) {
    torch::manual_seed(11);
    const Tensor x = at::randn({4, 16}).requires_grad_();
    const Tensor y = x.detach().clone().requires_grad_();
    const Tensor found = layer->linear(x);
    const Tensor expected = layer->plain(y);
    found.square().sum().backward();
    expected.square().sum().backward();
    const auto equals = [](const Tensor& a, const Tensor& b) {
      return at::allclose(a, b, 1e-6, 1e-6);
    };
    EXPECT_EQ(equals(found, expected), layer == &all);
    EXPECT_EQ(equals(x.grad(), y.grad()), layer == &all);
    EXPECT_EQ(
        equals(layer->linear->weight.grad(), layer->plain->weight.grad()),
        layer == &all);
  }
}

TEST(Float8Linear, LeavesOneOverriddenProductInHighPrecision) {
  const std::vector<OverrideLinearPrecision> overrides{
      {.fprop = true}, {.dgrad = true}, {.wgrad = true}, {}};
  for (const OverrideLinearPrecision& high : overrides) {
    Watched layer(float8_rules_of(delayed(high)));
    torch::manual_seed(11);
    const Tensor x = at::randn({4, 16}).requires_grad_();
    const Tensor y = x.detach().clone().requires_grad_();
    const Tensor found = layer.linear(x);
    const Tensor expected = layer.plain(y);
    const Tensor grad = at::randn({4, 32});
    found.backward(grad);
    expected.backward(grad);
    const auto equals = [](const Tensor& a, const Tensor& b) {
      return at::allclose(a, b, 1e-6, 1e-6);
    };
    EXPECT_EQ(equals(found, expected), high.fprop);
    EXPECT_EQ(equals(x.grad(), y.grad()), high.dgrad);
    EXPECT_EQ(
        equals(layer.linear->weight.grad(), layer.plain->weight.grad()),
        high.wgrad);
  }
}

TEST(Float8Linear, IsPlainOutsideOfForwardsWhereTheRecipeSaysSo) {
  Watched layer(float8_rules_of(delayed()), /*only_in_forwards=*/true);
  const Tensor x = at::randn({4, 16});
  const Tensor expected = layer.plain(x);
  EXPECT_TRUE(at::equal(layer.linear(x), expected));
  layer.keeper->begin_forward(/*in_float8=*/false);
  EXPECT_TRUE(at::equal(layer.linear(x), expected));
  layer.keeper->end_forward();
  layer.keeper->begin_forward(/*in_float8=*/true);
  EXPECT_FALSE(at::equal(layer.linear(x), expected));
  layer.keeper->end_forward();
  EXPECT_TRUE(at::equal(layer.linear(x), expected));
}

TEST(Float8Linear, RoundsGradientsAtRandomWithoutBias) {
  const auto rules_of = [](const std::string& name, bool is_random) {
    if (name == "tensorwise" || name == "rowwise") {
      Float8LinearConfig config = Float8LinearConfig::from_recipe_name(name);
      config.stochastic_rounding = is_random;
      return float8_rules_of(AORecipeKwargs{config});
    }
    TERecipeKwargs recipe = delayed();
    recipe.use_mxfp8_block_scaling = name == "mxfp8";
    recipe.stochastic_rounding = is_random;
    return float8_rules_of(recipe);
  };
  for (const std::string name : {"tensorwise", "rowwise", "delayed", "mxfp8"}) {
    SCOPED_TRACE(name);
    torch::manual_seed(5);
    // One large value determines the scale; all others lie between two float8
    // values.
    Tensor grad = at::full({4096, 32}, 1.1F);
    grad[0][0] = 57344;
    const auto mean_of = [&](bool is_random) {
      Watched layer(rules_of(name, is_random));
      layer.linear(at::ones({4096, 16})).backward(grad);
      return layer.linear->weight.grad()[1][0].item<float>() / 4096;
    };
    EXPECT_NEAR(mean_of(true), 1.1, 0.01);
    EXPECT_GT(std::abs(mean_of(false) - 1.1), 0.02);
  }
}

// Block scales are kept as bytes, some of which are special values.
TEST(Float8Linear, KeepsScalesOfBlocksExactly) {
  TERecipeKwargs recipe = delayed();
  recipe.use_mxfp8_block_scaling = true;
  Watched layer(float8_rules_of(recipe));
  // Blocks with ordinary values, zeros, tiny values, huge values and an
  // infinity.
  Tensor x = at::randn({160, 16});
  x.slice(0, 32, 64).zero_();
  x.slice(0, 64, 96).mul_(1e-38);
  x.slice(0, 96, 128).mul_(1e37);
  x[130][3] = std::numeric_limits<float>::infinity();
  const Tensor grad = at::ones({160, 32});
  layer.linear(x).backward(grad);
  const DynamicCast blocks{at::kFloat8_e4m3fn, Float8Granularity::blocks};
  const DynamicCast gradient_blocks{
      at::kFloat8_e5m2, Float8Granularity::blocks};
  const Tensor expected =
      at::mm(rounded(grad, gradient_blocks, 0).t(), rounded(x, blocks, 0));
  EXPECT_TRUE(
      at::allclose(layer.linear->weight.grad(), expected, 1e-5, 0, true));
}

TEST(Float8Linear, KeepsInputsInFloat8WhereTheSameCastServesTwice) {
  Watched layer(float8_rules_of(AORecipeKwargs{Float8LinearConfig{}}));
  Tensor x = at::randn({4, 16});
  const Tensor output = layer.linear(x);
  const Tensor before = x.clone();
  // The input itself is not kept, so it can change.
  x.zero_();
  output.sum().backward();
  EXPECT_GT(layer.linear->weight.grad().abs().sum().item<float>(), 0);
}

}  // namespace float8_linear_test

}  // namespace accelerate::detail
