// scaled_dot_product_attention with float8 queries, keys and values, compared
// with attention on values that the test rounds by hand.
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/context_parallel.h>
#include <accelerate/fp8.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace float8_attention_test {

namespace nn = torch::nn;
using at::Tensor;
using testing::run_on_ranks;

constexpr std::int64_t kSamples = 2;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kLength = 24;
constexpr std::int64_t kElements = 8;

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

/// Arguments of attention other than its tensors.
struct Rules {
  std::optional<Tensor> mask = std::nullopt;
  double dropout_p = 0;
  bool is_causal = false;
  bool enable_gqa = false;
};

/// Queries, keys and values as parameters. Heads differ widely in magnitude.
struct NetImpl : nn::Module {
  explicit NetImpl(Rules given = {}) : rules(std::move(given)) {
    const std::int64_t key_heads = rules.enable_gqa ? kHeads / 2 : kHeads;
    const auto make = [](std::int64_t heads, std::uint64_t seed) {
      Tensor made = normal({kSamples, heads, kLength, kElements}, seed);
      for (std::int64_t h = 0; h < heads; ++h)
        made.select(1, h).mul_(std::pow(0.1, h));
      return made;
    };
    q = register_parameter("q", make(kHeads, 1));
    k = register_parameter("k", make(key_heads, 2));
    v = register_parameter("v", make(key_heads, 3));
  }
  Tensor forward(const Tensor& factor) {
    return at::scaled_dot_product_attention(
        q * factor,
        k,
        v,
        rules.mask,
        rules.dropout_p,
        rules.is_causal,
        std::nullopt,
        rules.enable_gqa);
  }
  Rules rules;
  Tensor q, k, v;
};
TORCH_MODULE(Net);

// Rounds by LibTorch's casts; scales are powers of two.
Tensor rounded(const Tensor& x, Float8Attention granularity) {
  const Tensor amax = granularity == Float8Attention::per_head
      ? x.abs().amax({-1, -2}, /*keepdim=*/true)
      : x.abs().max();
  const Tensor scale =
      at::exp2(at::floor(at::log2(448 / amax.to(at::kDouble))));
  return ((x.to(at::kDouble) * scale)
              .to(at::kFloat)
              .to(at::kFloat8_e4m3fn)
              .to(at::kDouble) /
          scale)
      .to(x.scalar_type());
}

struct Attended {
  Tensor output;
  std::vector<Tensor> gradients;
};

Tensor seeds_of(const Tensor& output) {
  return normal(output.sizes(), 9).to(output.scalar_type());
}

Attended
by_hand(const Rules& rules, Float8Attention granularity, at::ScalarType dtype) {
  const Net net(rules);
  std::vector<Tensor> leaves;
  for (const Tensor& heads : {net->q, net->k, net->v}) {
    leaves.push_back(
        rounded(heads.detach().to(dtype), granularity).requires_grad_());
  }
  torch::manual_seed(4);
  const Tensor output = at::scaled_dot_product_attention(
      leaves[0],
      leaves[1],
      leaves[2],
      rules.mask,
      rules.dropout_p,
      rules.is_causal,
      std::nullopt,
      rules.enable_gqa);
  output.backward(seeds_of(output));
  Attended attended{output.detach(), {}};
  for (const Tensor& leaf : leaves)
    attended.gradients.push_back(leaf.grad().to(at::kFloat));
  return attended;
}

Attended by_model(
    const Rules& rules,
    Float8Attention granularity,
    at::ScalarType dtype) {
  Attended attended;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_attention = granularity,
         .autocast = {.enabled = dtype == at::kBFloat16},
         .world = world});
    Net net(rules);
    auto model = accelerator.prepare(net);
    torch::manual_seed(4);
    const Tensor output = model(at::ones({}));
    output.backward(seeds_of(output));
    attended = {output.detach(), {net->q.grad(), net->k.grad(), net->v.grad()}};
  });
  return attended;
}

void expect_equal(const Attended& found, const Attended& expected) {
  EXPECT_TRUE(
      at::equal(found.output, expected.output.to(found.output.scalar_type())));
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < found.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(found.gradients[i], expected.gradients[i]))
        << "gradient " << i << " differs by "
        << (found.gradients[i] - expected.gradients[i])
               .abs()
               .max()
               .item<double>();
  }
}

std::vector<std::pair<std::string, Rules>> rules() {
  return {
      {"plain", {}},
      {"causal", {.is_causal = true}},
      {"mask", {.mask = normal({kLength, kLength}, 5) > -0.5}},
      {"dropout", {.dropout_p = 0.3}},
      {"fewer heads of keys", {.enable_gqa = true}}};
}

TEST(Float8Attention, IsAttentionOfRoundedValues) {
  for (const auto& [name, each] : rules()) {
    for (const Float8Attention granularity :
         {Float8Attention::per_tensor, Float8Attention::per_head}) {
      SCOPED_TRACE(name);
      const Attended expected = by_hand(each, granularity, at::kFloat);
      expect_equal(by_model(each, granularity, at::kFloat), expected);
      // Full precision gives a different result.
      EXPECT_FALSE(at::equal(
          by_model(each, Float8Attention::none, at::kFloat).output,
          expected.output));
    }
  }
}

TEST(Float8Attention, RoundsWhatAutocastHasCast) {
  for (const Float8Attention granularity :
       {Float8Attention::per_tensor, Float8Attention::per_head}) {
    expect_equal(
        by_model({}, granularity, at::kBFloat16),
        by_hand({}, granularity, at::kBFloat16));
  }
}

TEST(Float8Attention, IsOffByDefaultAndOutsideOfForwards) {
  run_on_ranks(1, [](const WorldOptions& world) {
    for (const Float8Attention granularity :
         {AcceleratorOptions().fp8_attention, Float8Attention::per_tensor}) {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8,
           .fp8_attention = granularity,
           .autocast = {.enabled = false},
           .world = world});
      Net net;
      const Tensor one = at::ones({});
      const Tensor expected = net->forward(one).detach();
      auto model = accelerator.prepare(net);
      EXPECT_EQ(
          at::equal(model(one), expected),
          granularity == Float8Attention::none);
      EXPECT_TRUE(at::equal(net->forward(one), expected));
      EXPECT_THROW(static_cast<void>(model(at::ones({5}))), std::exception);
      EXPECT_TRUE(at::equal(net->forward(one), expected));
    }
  });
}

TEST(Float8Attention, EvaluatesInHighPrecisionIfItsRecipeDoes) {
  run_on_ranks(1, [](const WorldOptions& world) {
    for (const bool in_float8 : {false, true}) {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8,
           .fp8_recipe = TERecipeKwargs{.use_autocast_during_eval = in_float8},
           .fp8_attention = Float8Attention::per_head,
           .autocast = {.enabled = false},
           .world = world});
      Net net;
      const Tensor expected = net->forward(at::ones({}));
      auto model = accelerator.prepare(net);
      EXPECT_FALSE(at::equal(model(at::ones({})), expected));
      net->eval();
      EXPECT_EQ(at::equal(model(at::ones({})), expected), !in_float8);
    }
  });
}

/// Attention over a layer's output.
struct BlockImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const auto parts = qkv(x).unflatten(-1, {3, kHeads, kElements});
    const auto heads = [&](std::int64_t i) {
      return parts.select(2, i).transpose(1, 2);
    };
    return at::scaled_dot_product_attention(
               heads(0), heads(1), heads(2), {}, 0, /*is_causal=*/true)
        .transpose(1, 2)
        .flatten(2);
  }
  nn::Linear qkv = register_module(
      "qkv",
      nn::Linear(kHeads* kElements, 3 * kHeads * kElements));
};
TORCH_MODULE(Block);

// Multiples of 1/16, whose sums are exact in any order; otherwise casts would
// differ for values near the midpoint of two float8 values.
Tensor sixteenths(const Tensor& x) { return at::round(x * 16) / 16; }

Block make_block() {
  Block block;
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (Tensor& parameter : block->parameters())
    parameter.copy_(sixteenths(normal(parameter.sizes(), seed++) * 0.3));
  return block;
}

Tensor gradient_with(const ParallelOptions& parallel) {
  Tensor gradient;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_attention = Float8Attention::per_head,
         .autocast = {.enabled = false},
         .parallel = parallel,
         .world = world});
    Block block = make_block();
    auto model = accelerator.prepare(block);
    const Tensor x = normal({kSamples, kLength, kHeads * kElements}, 7);
    accelerator.backward(model(x).square().mean());
    gradient = block->qkv->weight.grad().clone();
  });
  return gradient;
}

TEST(Float8Attention, IsKeptByActivationCheckpointing) {
  const Tensor expected = gradient_with({});
  EXPECT_TRUE(at::equal(
      gradient_with(
          {.activation_checkpointing =
               ActivationCheckpointingOptions{
                   .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
                   .min_num_params = 100}}),
      expected));
}

// The largest values are at the first position, which only one rank has.
TEST(Float8Attention, HasTheScalesOfTheWholeSequence) {
  Tensor x = normal({kSamples, kLength, kHeads * kElements}, 7) * 0.5;
  x.select(1, 0).mul_(5.3);
  x = sixteenths(x);
  const auto output_on = [&](int num_ranks, Float8Attention granularity) {
    Tensor output;
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8,
           .fp8_attention = granularity,
           .autocast = {.enabled = false},
           .parallel = {.context = num_ranks},
           .world = world});
      Block block = make_block();
      auto model = accelerator.prepare(block);
      Tensor own = x.clone();
      const auto scope = accelerator.maybe_context_parallel({own}, {1});
      Tensor whole = at::zeros_like(x);
      whole.index_copy_(1, scope.positions(), model(own).detach());
      accelerator.world().group().all_reduce(whole);
      if (*world.rank == 0) output = whole;
    });
    return output;
  };
  const auto difference = [](const Tensor& a, const Tensor& b) {
    return (a - b).abs().max().item<double>();
  };
  const Tensor in_high_precision = output_on(1, Float8Attention::none);
  for (const Float8Attention granularity :
       {Float8Attention::none,
        Float8Attention::per_tensor,
        Float8Attention::per_head}) {
    const Tensor expected = output_on(1, granularity);
    for (const int num_ranks : {2, 4}) {
      EXPECT_LT(difference(output_on(num_ranks, granularity), expected), 1e-5);
    }
    if (granularity == Float8Attention::none) continue;
    EXPECT_GT(difference(in_high_precision, expected), 1e-3);
  }
}

}  // namespace float8_attention_test
}  // namespace accelerate
