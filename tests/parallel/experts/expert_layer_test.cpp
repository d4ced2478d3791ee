// What a layer of experts computes in one process, written out token by token.
#include <cmath>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace expert_layer_test {

using testing::expect_error;
using torch::Tensor;
namespace nn = torch::nn;

constexpr std::int64_t kHidden = 6, kInner = 5;

ExpertLayerOptions options_of(std::int64_t num_experts) {
  return {
      .hidden_size = kHidden,
      .num_experts = num_experts,
      .router = {.top_k = 2},
      .mlp = ExpertMlpOptions{.intermediate_size = kInner}};
}

Tensor weight(const nn::Module& module, const std::string& name) {
  return module.named_parameters()[name];
}

// A gated or plain MLP's result for one token.
Tensor
by_hand(const ExpertLayer& layer, std::int64_t expert, const Tensor& token) {
  const ExpertMlpOptions& mlp = *layer->options().mlp;
  const auto matrix = [&](const std::string& name) {
    return weight(*layer, "experts." + name)[expert];
  };
  const auto bias = [&](const std::string& name) {
    return mlp.bias ? matrix(name + "_bias") : torch::zeros({});
  };
  const auto act = [&](const Tensor& x) {
    return mlp.activation == ExpertActivation::relu ? torch::relu(x)
        : mlp.activation == ExpertActivation::gelu  ? torch::gelu(x)
                                                    : torch::silu(x);
  };
  const Tensor up = matrix("up_proj").mv(token) + bias("up");
  const Tensor inner = mlp.gated
      ? act(matrix("gate_proj").mv(token) + bias("gate")) * up
      : act(up);
  return matrix("down_proj").mv(inner) + bias("down");
}

Tensor by_hand(const ExpertLayer& layer, const Tensor& tokens) {
  Router router(kHidden, layer->options().num_experts, layer->options().router);
  {
    const torch::NoGradGuard no_grad;
    router->weight.copy_(weight(*layer, "gate.weight"));
  }
  const Routing routing = router->forward(tokens);
  std::vector<Tensor> rows;
  for (std::int64_t t = 0; t < tokens.size(0); ++t) {
    Tensor row = torch::zeros({kHidden});
    for (std::int64_t k = 0; k < routing.experts.size(1); ++k) {
      row = row +
          routing.weights[t][k] *
              by_hand(
                  layer, routing.experts[t][k].item<std::int64_t>(), tokens[t]);
    }
    rows.push_back(row);
  }
  return torch::stack(rows);
}

TEST(ExpertLayer, IsTheWeightedSumOfATokensExperts) {
  for (const bool gated : {true, false}) {
    for (const bool bias : {true, false}) {
      for (const ExpertActivation activation :
           {ExpertActivation::relu,
            ExpertActivation::gelu,
            ExpertActivation::silu}) {
        ExpertLayerOptions options = options_of(5);
        options.mlp->gated = gated;
        options.mlp->bias = bias;
        options.mlp->activation = activation;
        ExpertLayer layer(options);
        const Tensor x = torch::randn({7, kHidden});
        EXPECT_TRUE(
            torch::allclose(layer->forward(x), by_hand(layer, x), 1e-5, 1e-6));
      }
    }
  }
}

TEST(ExpertLayer, TakesAnyShape) {
  ExpertLayer layer(options_of(3));
  const Tensor x = torch::randn({2, 4, kHidden});
  const Tensor y = layer->forward(x);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_TRUE(torch::allclose(
      y.flatten(0, 1), layer->forward(x.flatten(0, 1)), 1e-5, 1e-6));
  EXPECT_EQ(layer->forward(torch::randn({kHidden})).dim(), 1);
  // Not contiguous.
  EXPECT_TRUE(torch::allclose(
      layer->forward(x.transpose(0, 1)), y.transpose(0, 1), 1e-5, 1e-6));
  const Tensor none = layer->forward(torch::empty({0, kHidden}));
  EXPECT_EQ(none.sizes(), (std::vector<std::int64_t>{0, kHidden}));
  expect_error<ConfigError>(
      [&] { layer->forward(torch::zeros({2, 3})); },
      "must be hidden_size = 6, but its shape is [2, 3]");
}

TEST(ExpertLayer, GivesGradientsToTokensExpertsAndRouter) {
  ExpertLayer layer(options_of(4));
  layer->to(torch::kDouble);
  // Routing is in fp32, so finite differences must exceed its resolution.
  const Tensor x = torch::randn({5, kHidden}, torch::kDouble).requires_grad_();
  const Tensor direction = torch::randn({5, kHidden}, torch::kDouble);
  (layer->forward(x) * direction).sum().backward();
  for (const auto& item : layer->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
  }
  const torch::NoGradGuard no_grad;
  const double step = 1e-3;
  for (std::int64_t i = 0; i < kHidden; ++i) {
    const auto at = [&](double change) {
      Tensor moved = x.detach().clone();
      moved[2][i] += change;
      return (layer->forward(moved) * direction).sum().item<double>();
    };
    EXPECT_NEAR(
        x.grad()[2][i].item<double>(),
        (at(step) - at(-step)) / (2 * step),
        2e-3);
  }
}

TEST(ExpertLayer, GivesZerosToExpertsWithoutTokens) {
  ExpertLayer layer(options_of(4));
  {
    const torch::NoGradGuard no_grad;
    weight(*layer, "gate.weight").zero_();
    weight(*layer, "gate.weight")[1].fill_(1);
    weight(*layer, "gate.weight")[3].fill_(2);
  }
  layer->forward(torch::ones({3, kHidden})).sum().backward();
  const Tensor gradient = weight(*layer, "experts.up_proj").grad();
  EXPECT_EQ(gradient[0].abs().max().item<double>(), 0);
  EXPECT_EQ(gradient[2].abs().max().item<double>(), 0);
  EXPECT_GT(gradient[1].abs().max().item<double>(), 0);
  EXPECT_EQ(
      layer->take_load().assigned, (std::vector<std::int64_t>{0, 3, 0, 3}));
}

TEST(ExpertLayer, ReturnsZeroForDroppedTokens) {
  ExpertLayerOptions options = options_of(2);
  options.router.top_k = 1;
  options.router.capacity_factor = 1.0;
  options.router.drop = TokenDrop::last_position;
  ExpertLayer layer(options);
  {
    const torch::NoGradGuard no_grad;
    weight(*layer, "gate.weight").zero_();
    weight(*layer, "gate.weight")[1].fill_(1);
  }
  const Tensor x = torch::ones({4, kHidden});
  const Tensor y = layer->forward(x);
  EXPECT_GT(y[1].abs().max().item<double>(), 0);
  EXPECT_EQ(y.narrow(0, 2, 2).abs().max().item<double>(), 0);
  const ExpertLoad load = layer->take_load();
  EXPECT_EQ(load.assigned, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(load.dropped, 2);
  EXPECT_EQ(load.imbalance(), 2);
  EXPECT_EQ(layer->take_load().dropped, 0);
  EXPECT_EQ(layer->take_load().imbalance(), 1);
}

TEST(ExpertLayer, DropsTheTokensThatItsRouterNames) {
  const Tensor x = torch::arange(1, 5).unsqueeze(1).expand({4, kHidden}) * 0.1;
  const auto kept = [&](TokenDrop drop) {
    ExpertLayerOptions options = options_of(2);
    options.router.top_k = 1;
    options.router.normalize_weights = false;
    options.router.capacity_factor = 1.0;
    options.router.drop = drop;
    ExpertLayer layer(options);
    {
      const torch::NoGradGuard no_grad;
      weight(*layer, "gate.weight").zero_();
      weight(*layer, "gate.weight")[1].fill_(1);
    }
    const Tensor y = layer->forward(x);
    std::vector<int> rows;
    for (int i = 0; i < 4; ++i)
      if (y[i].abs().max().item<double>() > 0) rows.push_back(i);
    return rows;
  };
  EXPECT_EQ(kept(TokenDrop::last_position), (std::vector<int>{0, 1}));
  EXPECT_EQ(kept(TokenDrop::lowest_weight), (std::vector<int>{2, 3}));
  EXPECT_EQ(kept(TokenDrop::random).size(), 2);
}

TEST(ExpertLayer, ComputesBalanceAndZLosses) {
  ExpertLayerOptions options = options_of(4);
  options.router.balance_loss_coefficient = 0.5;
  options.router.z_loss_coefficient = 0.25;
  ExpertLayer layer(options);
  const Tensor x = torch::randn({9, kHidden});
  layer->forward(x);
  const Tensor logits = torch::linear(x, weight(*layer, "gate.weight"));
  const Tensor chosen = std::get<1>(logits.topk(2, -1));
  const Tensor shares =
      torch::one_hot(chosen, 4).flatten(0, 1).sum(0).to(torch::kFloat) / 18.0;
  const Tensor balance =
      4 * (shares * torch::softmax(logits, -1).mean(0)).sum();
  const Tensor z = torch::logsumexp(logits, -1).square().mean();
  EXPECT_TRUE(torch::allclose(layer->balance_loss(), balance, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(layer->z_loss(), z, 1e-5, 1e-6));
  const Tensor sum = auxiliary_loss(*layer);
  expect_error<ConfigError>(
      [&] { static_cast<void>(auxiliary_loss(*layer)); },
      "called before a forward, or twice after one");
  EXPECT_TRUE(torch::allclose(sum, 0.5 * balance + 0.25 * z, 1e-5, 1e-6));
  const Tensor found =
      torch::autograd::grad({sum}, {weight(*layer, "gate.weight")})[0];
  const Tensor expected = torch::autograd::grad(
      {0.5 * balance + 0.25 * z}, {weight(*layer, "gate.weight")})[0];
  EXPECT_TRUE(torch::allclose(found, expected, 1e-4, 1e-6));
  // Even shares and even scores.
  {
    const torch::NoGradGuard no_grad;
    weight(*layer, "gate.weight").zero_();
  }
  layer->forward(x);
  EXPECT_NEAR(layer->balance_loss().item<double>(), 1, 1e-6);
  EXPECT_NEAR(layer->z_loss().item<double>(), std::pow(std::log(4.0), 2), 1e-5);
}

TEST(ExpertLayer, HasNoLossesWithoutCoefficientsTokensOrTraining) {
  ExpertLayer plain(options_of(4));
  plain->forward(torch::randn({3, kHidden}));
  EXPECT_FALSE(plain->auxiliary_loss().defined());
  EXPECT_EQ(auxiliary_loss(*plain).item<double>(), 0);
  EXPECT_FALSE(auxiliary_loss(*plain).requires_grad());
  ExpertLayerOptions options = options_of(4);
  options.router.balance_loss_coefficient = 1;
  options.router.z_loss_coefficient = 1;
  ExpertLayer layer(options);
  layer->eval();
  layer->forward(torch::randn({3, kHidden}));
  EXPECT_FALSE(layer->auxiliary_loss().defined());
  layer->train();
  layer->forward(torch::empty({0, kHidden}));
  EXPECT_EQ(layer->auxiliary_loss().item<double>(), 0);
  EXPECT_TRUE(layer->auxiliary_loss().requires_grad());
}

// An expert of the program, whose class the library does not know.
struct OwnExpertImpl : nn::Module {
  explicit OwnExpertImpl(double scale) : scale_(scale) {}
  Tensor forward(const Tensor& tokens) {
    rows += tokens.size(0);
    return scale_ * linear(torch::tanh(tokens));
  }
  nn::Linear linear = register_module("linear", nn::Linear(kHidden, kHidden));
  std::int64_t rows = 0;
  double scale_;
};
TORCH_MODULE(OwnExpert);

TEST(ExpertLayer, TakesModulesOfTheProgram) {
  std::vector<OwnExpert> experts;
  ExpertLayer layer(ExpertLayerOptions{
      .hidden_size = kHidden,
      .num_experts = 3,
      .router = {.top_k = 1, .normalize_weights = false},
      .make_expert =
          [&](std::int64_t index) {
            experts.emplace_back(static_cast<double>(index + 1));
            return nn::AnyModule(experts.back());
          },
      .make_shared_expert =
          [] { return nn::AnyModule(nn::Linear(kHidden, kHidden)); },
      .shared_expert_gate = true});
  EXPECT_TRUE(layer->named_parameters().contains("experts.2.linear.weight"));
  EXPECT_TRUE(layer->named_parameters().contains("shared_expert.weight"));
  const Tensor x = torch::randn({8, kHidden});
  const Tensor y = layer->forward(x);
  const Tensor scores =
      torch::softmax(torch::linear(x, weight(*layer, "gate.weight")), -1);
  const Tensor shared = torch::linear(
                            x,
                            weight(*layer, "shared_expert.weight"),
                            weight(*layer, "shared_expert.bias")) *
      torch::sigmoid(torch::linear(
          x, weight(*layer, "shared_expert_gate.weight")));
  for (std::int64_t t = 0; t < 8; ++t) {
    const auto e = scores[t].argmax().item<std::int64_t>();
    const Tensor expected = scores[t][e] *
            experts[static_cast<std::size_t>(e)]->forward(
                x.narrow(0, t, 1))[0] +
        shared[t];
    EXPECT_TRUE(torch::allclose(y[t], expected, 1e-5, 1e-6));
  }
  EXPECT_EQ(experts[0]->rows + experts[1]->rows + experts[2]->rows, 16);
}

TEST(ExpertLayer, AddsASharedMlp) {
  ExpertLayerOptions options = options_of(3);
  options.shared_mlp = ExpertMlpOptions{.intermediate_size = 4, .bias = true};
  ExpertLayer layer(options);
  const Tensor x = torch::randn({4, kHidden});
  const auto linear = [&](const std::string& name, const Tensor& input) {
    return torch::linear(
        input,
        weight(*layer, "shared_expert." + name + ".weight"),
        weight(*layer, "shared_expert." + name + ".bias"));
  };
  const Tensor shared = linear(
      "down_proj", torch::silu(linear("gate_proj", x)) * linear("up_proj", x));
  EXPECT_TRUE(torch::allclose(
      layer->forward(x), by_hand(layer, x) + shared, 1e-5, 1e-6));
}

TEST(ExpertLayer, RefusesWhatMakesNoSense) {
  const auto refuse = [](const ExpertLayerOptions& options,
                         const char* phrase) {
    expect_error<ConfigError>([&] { ExpertLayer layer(options); }, phrase);
  };
  ExpertLayerOptions options = options_of(4);
  options.make_expert = [](std::int64_t) { return nn::AnyModule(); };
  refuse(options, "an `mlp` or `make_expert`; set exactly one of them");
  options.mlp.reset();
  refuse(options, "make_expert(0) must not return an empty AnyModule");
  options.make_expert = nullptr;
  refuse(options, "set exactly one of them");
  options = options_of(4);
  options.shared_expert_gate = true;
  refuse(options, "needs a shared expert");
  options = options_of(4);
  options.mlp->intermediate_size = 0;
  refuse(options, "intermediate_size of experts must be at least 1");
  expect_error<ConfigError>(
      [] {
        ExpertLayer layer(ExpertLayerOptions{
            .hidden_size = kHidden,
            .num_experts = 1,
            .router = {.top_k = 1},
            .make_expert = [](std::int64_t) {
              return nn::AnyModule(nn::Linear(kHidden, 2));
            }});
        layer->forward(torch::zeros({3, kHidden}));
      },
      "expert 0 returned a tensor of shape [3, 2]");
}

TEST(ExpertLayer, IsClonedWithItsValues) {
  ExpertLayerOptions options = options_of(3);
  options.shared_mlp = ExpertMlpOptions{.intermediate_size = 4};
  ExpertLayer layer(options);
  const auto copy = std::dynamic_pointer_cast<ExpertLayerImpl>(layer->clone());
  const Tensor x = torch::randn({4, kHidden});
  const Tensor y = layer->forward(x);
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : layer->parameters()) parameter.zero_();
  }
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
}

TEST(ExpertMlp, TakesTokensSortedByExpert) {
  ExpertMlp mlp(2, kHidden, ExpertMlpOptions{.intermediate_size = 3});
  const Tensor x = torch::randn({5, kHidden});
  const Tensor both = mlp->forward(x, {2, 3});
  EXPECT_TRUE(torch::allclose(
      both.narrow(0, 2, 3), mlp->forward(x.narrow(0, 2, 3), {0, 3})));
  expect_error<ConfigError>(
      [&] { mlp->forward(x, {2, 2}); }, "one count per expert");
  expect_error<ConfigError>(
      [&] { mlp->forward(x, {5}); }, "an ExpertMlp of 2 experts");
}

TEST(ExpertLoads, AreLoggedAsShares) {
  const TrackedValues values = to_tracked_values(
      {{.layer = "blocks.0.moe", .assigned = {6, 2, 0, 0}, .dropped = 2}});
  ASSERT_EQ(values.size(), 3);
  EXPECT_EQ(values[0].name, "experts/blocks.0.moe/imbalance");
  EXPECT_EQ(values[0].value, TrackedValue(3.0));
  EXPECT_EQ(values[1].name, "experts/blocks.0.moe/dropped");
  EXPECT_EQ(values[1].value, TrackedValue(0.25));
  EXPECT_EQ(
      values[2].value, TrackedValue(TrackedValue::List{0.75, 0.25, 0.0, 0.0}));
}

}  // namespace expert_layer_test
}  // namespace accelerate
