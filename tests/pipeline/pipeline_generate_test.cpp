// Evaluation of sequences of different lengths, and generation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>
#include <accelerate/pipeline.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace pipeline_generate_test {

namespace F = torch::nn::functional;
using at::Tensor;
using testing::expect_error;
using testing::run_on_ranks;

constexpr std::int64_t kTokens = 7;

// Sums up each sequence, including its earlier calls if it keeps a cache.
struct SumImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    Tensor sums = x.cumsum(1);
    if (!keeps) return sums;
    Tensor& seen = cache[current_micro_batch()];
    if (seen.defined()) sums = sums + seen;
    seen = sums.narrow(1, sums.size(1) - 1, 1).detach();
    return sums;
  }
  bool keeps = false;
  std::map<int, Tensor> cache;
};
TORCH_MODULE(Sum);

struct Net {
  torch::nn::Embedding embedding{kTokens, 4};
  Sum first, second;
  torch::nn::Linear head{4, kTokens};

  Net() {
    const torch::NoGradGuard no_grad;
    embedding->weight.copy_(
        torch::sin(torch::arange(kTokens * 4) * 3.0).view({kTokens, 4}));
    head->weight.copy_(
        torch::cos(torch::arange(kTokens * 4) * 5.0).view({kTokens, 4}));
    head->bias.copy_(torch::sin(torch::arange(kTokens) * 2.0));
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor h = torch::tanh(first(embedding(tokens)));
    return head(torch::tanh(second(h)));
  }
  PipelineLayers layers() {
    PipelineLayers layers;
    layers.add("embedding", embedding)
        .add(
            "first",
            first,
            [](SumImpl& sum, Tensor x) { return torch::tanh(sum.forward(x)); })
        .add(
            "second",
            second,
            [](SumImpl& sum, Tensor x) { return torch::tanh(sum.forward(x)); })
        .add("head", head);
    return layers;
  }
  void keep(bool keeps) {
    for (Sum* sum : {&first, &second}) {
      (*sum)->keeps = keeps;
      (*sum)->cache.clear();
    }
  }
};

Tensor prompts() { return (torch::arange(15) * 4 % kTokens).view({5, 3}); }

Tensor generated_alone(std::int64_t count) {
  const torch::NoGradGuard no_grad;
  Net net;
  Tensor tokens = prompts();
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor logits = net.forward(tokens).select(1, -1);
    tokens = torch::cat({tokens, logits.argmax(-1, true)}, 1);
  }
  return tokens;
}

TEST(PipelineGenerate, EqualsOneProcess) {
  const Tensor expected = generated_alone(6);
  for (const char* schedule : {"1F1B", "ZBVZeroBubble"}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.pipeline = 2}, .world = world});
      Net net;
      const Pipeline pipeline(
          accelerator,
          net.layers(),
          {.schedule = parse_pipeline_schedule(schedule),
           .num_micro_batches = 2});
      for (const bool has_cache : {false, true}) {
        net.keep(has_cache);
        EXPECT_TRUE(
            pipeline
                .generate(
                    prompts(), {.max_new_tokens = 6, .has_cache = has_cache})
                .equal(expected));
      }
      net.keep(false);
      // The program's own function, which chooses the least likely token.
      const Tensor unlikely = pipeline.generate(
          prompts(),
          [](const Tensor& logits) { return logits.select(1, -1).argmin(-1); },
          {.max_new_tokens = 1});
      EXPECT_TRUE(unlikely.narrow(1, 0, 3).equal(prompts()));
      EXPECT_FALSE(unlikely.equal(generated_alone(1)));
      EXPECT_TRUE(
          pipeline.generate(prompts(), {.max_new_tokens = 0}).equal(prompts()));
    });
  }
}

TEST(PipelineGenerate, EndsSequences) {
  const Tensor whole = generated_alone(8);
  // A token that some sequence generates.
  const std::int64_t eos = whole[0][4].item<std::int64_t>();
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 2}, .world = world});
    Net net;
    const Pipeline pipeline(accelerator, net.layers());
    const Tensor found = pipeline.generate(
        prompts(), {.max_new_tokens = 8, .eos_token_id = eos});
    for (std::int64_t row = 0; row < found.size(0); ++row) {
      bool has_ended = false;
      for (std::int64_t i = 3; i < found.size(1); ++i) {
        const std::int64_t expected =
            has_ended ? eos : whole[row][i].item<std::int64_t>();
        EXPECT_EQ(found[row][i].item<std::int64_t>(), expected);
        has_ended = has_ended || expected == eos;
      }
    }
    EXPECT_EQ(found[0][4].item<std::int64_t>(), eos);
  });
}

TEST(PipelineGenerate, RefusesTensorsThatAreNotTokens) {
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Net net;
    const Pipeline pipeline(accelerator, net.layers());
    expect_error<ConfigError>(
        [&] { pipeline.generate(torch::zeros({3}, torch::kLong)); },
        "tokens of generate() must have shape [sequences, length], but have "
        "[3]");
    expect_error<ConfigError>(
        [&] {
          pipeline.generate(
              prompts(), [](const Tensor& logits) { return logits; });
        },
        "returned a tensor of shape [5, 3, 7] for 5 sequences");
    PipelineLayers flat;
    flat.add("flat", [](Tensor x) { return x; });
    const Pipeline other(accelerator, flat);
    expect_error<ConfigError>(
        [&] { other.generate(prompts()); },
        "but returned a tensor of shape [5, 3]");
  });
}

// Lengths differ between batches, while training steps in between keep theirs.
TEST(PipelineEvaluate, TakesAnyLength) {
  Net alone;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 2}, .world = world});
    Net net;
    const Pipeline pipeline(
        accelerator, net.layers(), {.num_micro_batches = 2});
    const auto loss = [](const Tensor& logits, const Tensor& labels) {
      return F::cross_entropy(logits.flatten(0, 1), labels.flatten());
    };
    const auto batch = [](std::int64_t length) {
      return (torch::arange(4 * length) * 5 % kTokens).view({4, length});
    };
    for (const std::int64_t length : {3, 5, 3, 2}) {
      pipeline.step(batch(4), batch(4), loss);
      const double found = pipeline
                               .evaluate(
                                   batch(length),
                                   batch(length),
                                   loss,
                                   {.shapes_may_change = true})
                               .loss.item<double>();
      const torch::NoGradGuard no_grad;
      Tensor expected;
      for (const Tensor& part : batch(length).chunk(2)) {
        const Tensor each = loss(alone.forward(part), part) / 2;
        expected = expected.defined() ? expected + each : each;
      }
      EXPECT_NEAR(found, expected.item<double>(), 1e-6);
    }
    EXPECT_EQ(current_micro_batch(), 0);
  });
}

}  // namespace pipeline_generate_test
}  // namespace accelerate
