// Which experts tokens choose and with which weights, and which tokens are
// dropped.
#include <cmath>

#include <ATen/autocast_mode.h>
#include <accelerate/accelerate.h>

#include "parallel/expert/token_plan.h"
#include "support/expect_error.h"

namespace accelerate {
namespace router_test {

using detail::capacity_of;
using detail::plan_tokens;
using testing::expect_error;
using torch::Tensor;

// A router whose logits are the tokens themselves.
Router plain_router(std::int64_t num_experts, const RouterOptions& options) {
  Router router(num_experts, num_experts, options);
  const torch::NoGradGuard no_grad;
  router->weight.copy_(torch::eye(num_experts));
  return router;
}

Tensor tokens() {
  return torch::tensor(
      {{3.0, 1.0, 2.0, 0.0}, {0.0, 0.0, 5.0, 4.0}, {1.0, 2.0, 0.0, -1.0}},
      torch::kFloat);
}

void expect_values(const Tensor& found, const Tensor& expected) {
  EXPECT_TRUE(torch::allclose(found, expected, 1e-6, 1e-7))
      << found << "\nexpected\n"
      << expected;
}

TEST(Router, ChoosesTheHighestScores) {
  const Routing routing = plain_router(4, {.top_k = 2})->forward(tokens());
  EXPECT_TRUE(
      torch::equal(routing.experts, torch::tensor({{0, 2}, {2, 3}, {1, 0}})));
  // A softmax over the chosen logits.
  const double e = std::exp(-1.0);
  const Tensor row = torch::tensor({1 / (1 + e), e / (1 + e)}, torch::kFloat);
  expect_values(routing.weights, row.expand({3, 2}));
  expect_values(routing.scores, torch::softmax(tokens(), -1));
  expect_values(routing.logits, tokens());
}

TEST(Router, KeepsScoresAsWeightsIfToldTo) {
  const Routing routing =
      plain_router(
          4, {.top_k = 1, .normalize_weights = false, .weight_scale = 2.5})
          ->forward(tokens());
  expect_values(
      routing.weights,
      2.5 * torch::softmax(tokens(), -1).amax(-1, /*keepdim=*/true));
}

TEST(Router, ScoresBySigmoids) {
  const Routing routing =
      plain_router(4, {.top_k = 3, .score = RouterScore::sigmoid})
          ->forward(tokens());
  const Tensor chosen =
      std::get<0>(torch::topk(torch::sigmoid(tokens()), 3, -1));
  expect_values(routing.weights, chosen / chosen.sum(-1, true));
  expect_values(routing.scores.sum(-1), torch::ones({3}));
}

TEST(Router, StaysInFullPrecisionUnderAutocast) {
  Router router(8, 4);
  const Tensor x = torch::randn({5, 8});
  const Routing expected = router->forward(x);
  const bool was_on = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Routing found = router->forward(x);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  at::autocast::set_autocast_enabled(at::kCPU, was_on);
  at::autocast::clear_cache();
  EXPECT_TRUE(torch::equal(found.logits, expected.logits));
  router->to(torch::kBFloat16);
  const Routing low = router->forward(x.to(torch::kBFloat16));
  EXPECT_EQ(low.weights.scalar_type(), torch::kFloat);
  expect_values(
      low.logits,
      torch::linear(
          x.to(torch::kBFloat16).to(torch::kFloat),
          router->weight.to(torch::kFloat)));
}

TEST(Router, AddsNoiseInTrainingOnly) {
  for (const RouterNoise noise :
       {RouterNoise::jitter, RouterNoise::gumbel, RouterNoise::normal}) {
    Router router =
        plain_router(4, {.top_k = 1, .noise = noise, .noise_scale = 0.9});
    torch::manual_seed(4);
    const Tensor x = torch::randn({200, 4});
    const Tensor first = router->forward(x).experts;
    EXPECT_FALSE(torch::equal(first, router->forward(x).experts));
    router->eval();
    EXPECT_TRUE(torch::equal(router->forward(x).experts, x.argmax(-1, true)));
  }
  // Noise on the logits affects the choice, but not the weights.
  Router router = plain_router(
      4,
      {.top_k = 1,
       .normalize_weights = false,
       .noise = RouterNoise::gumbel,
       .noise_scale = 1});
  const Tensor x = torch::randn({50, 4});
  const Routing routing = router->forward(x);
  expect_values(
      routing.weights, torch::softmax(x, -1).gather(-1, routing.experts));
}

TEST(Router, RefusesWhatMakesNoSense) {
  const auto refuse = [](const RouterOptions& options, const char* phrase) {
    expect_error<ConfigError>([&] { Router(8, 4, options); }, phrase);
  };
  refuse(
      {.top_k = 5},
      "top_k must be from 1 to 4, the number of experts, but is 5");
  refuse({.top_k = 0}, "the number of experts, but is 0");
  refuse({.capacity_factor = 0}, "capacity_factor must be above 0");
  refuse({.eval_capacity_factor = -1}, "eval_capacity_factor must be above 0");
  refuse({.min_capacity = -1}, "min_capacity must be at least 0, but is -1");
  refuse({.balance_loss_coefficient = -1}, "but they are -1, ");
  refuse(
      {.noise = RouterNoise::jitter, .noise_scale = 1}, "flip signs of inputs");
  expect_error<ConfigError>(
      [] { Router(0, 4); }, "at least 1, but are 0 and 4");
}

using Counts = std::vector<std::int64_t>;

Routing routing_of(const Tensor& experts, const Tensor& weights) {
  return {experts, weights, {}, {}};
}

// An expert takes so many tokens at most.
RouterOptions with_capacity(
    std::int64_t capacity,
    TokenDrop drop = TokenDrop::lowest_weight) {
  return {.capacity_factor = 0, .min_capacity = capacity, .drop = drop};
}

TEST(TokenPlan, SortsAssignmentsByExpert) {
  const auto plan = plan_tokens(
      routing_of(torch::tensor({{0, 2}, {2, 3}, {0, 2}}), torch::ones({3, 2})),
      5,
      {},
      true);
  const Counts counts{2, 0, 3, 1, 0};
  EXPECT_EQ(plan.host_counts_of_ranks, std::vector<Counts>{counts});
  EXPECT_TRUE(torch::equal(plan.num_assigned, torch::tensor(counts)));
  EXPECT_TRUE(torch::equal(plan.num_kept, torch::tensor(counts)));
  EXPECT_TRUE(torch::equal(plan.slots, torch::tensor({0, 4, 1, 2, 5, 3})));
  EXPECT_TRUE(torch::equal(plan.tokens, torch::tensor({0, 2, 0, 1, 2, 1})));
}

TEST(TokenPlan, DropsWhatExceedsTheCapacity) {
  const Routing routing = routing_of(
      torch::tensor({{0}, {0}, {1}, {0}, {0}}),
      torch::tensor({{0.2}, {0.9}, {0.5}, {0.7}, {0.7}}, torch::kFloat));
  const auto slots = [&](TokenDrop drop, std::int64_t capacity) {
    const auto plan =
        plan_tokens(routing, 2, with_capacity(capacity, drop), true);
    EXPECT_TRUE(torch::equal(plan.num_assigned, torch::tensor(Counts{4, 1})));
    EXPECT_EQ(plan.num_kept.sum().item<std::int64_t>(), plan.slots.numel());
    return plan.slots;
  };
  // Among equal weights, the first is kept.
  EXPECT_TRUE(torch::equal(
      slots(TokenDrop::lowest_weight, 2), torch::tensor({1, 3, 2})));
  EXPECT_TRUE(torch::equal(
      slots(TokenDrop::last_position, 2), torch::tensor({0, 1, 2})));
  EXPECT_TRUE(torch::equal(
      slots(TokenDrop::lowest_weight, 4), torch::tensor({0, 1, 3, 4, 2})));
  EXPECT_EQ(slots(TokenDrop::last_position, 0).numel(), 0);
  std::set<std::int64_t> kept;
  for (int i = 0; i < 100; ++i) {
    const Tensor some = slots(TokenDrop::random, 2);
    EXPECT_EQ(some.numel(), 3);
    EXPECT_LT(some[0].item<std::int64_t>(), some[1].item<std::int64_t>());
    kept.insert(some[0].item<std::int64_t>());
    kept.insert(some[1].item<std::int64_t>());
  }
  EXPECT_EQ(kept, (std::set<std::int64_t>{0, 1, 3, 4}));
}

TEST(TokenPlan, TakesNoTokens) {
  const auto plan = plan_tokens(
      routing_of(torch::empty({0, 2}, torch::kLong), torch::empty({0, 2})),
      3,
      with_capacity(1),
      true);
  EXPECT_EQ(plan.host_counts_of_ranks, std::vector<Counts>{Counts(3)});
  EXPECT_EQ(plan.slots.numel(), 0);
}

TEST(Capacity, IsAShareOfTheAssignments) {
  RouterOptions options{.top_k = 2};
  EXPECT_LT(capacity_of(options, 4, 100, true), 0);
  options.capacity_factor = 1.25;
  EXPECT_EQ(capacity_of(options, 4, 100, true), 63);  // 62.5
  EXPECT_EQ(capacity_of(options, 4, 0, true), 0);
  // A token is never sent to the same expert twice.
  EXPECT_EQ(capacity_of(options, 2, 100, true), 100);
  options.min_capacity = 8;
  EXPECT_EQ(capacity_of(options, 4, 4, true), 8);
  options.eval_capacity_factor = 2;
  EXPECT_EQ(capacity_of(options, 4, 80, false), 80);
  EXPECT_EQ(capacity_of(options, 4, 80, true), 50);
  // 0.1 x 10 must not exceed 1 because of rounding.
  EXPECT_EQ(capacity_of({.top_k = 1, .capacity_factor = 0.1}, 1, 10, true), 1);
}

}  // namespace router_test
}  // namespace accelerate
