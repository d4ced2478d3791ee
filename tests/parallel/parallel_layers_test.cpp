// Layers that define how they are split, and projections that are split by
// attention heads.
#include <accelerate/accelerate.h>

#include <mutex>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace parallel_layers_test {

using testing::expect_error;
using testing::named;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

constexpr std::int64_t kHeadSize = 2, kWords = 13, kTime = 4;
constexpr int kSteps = 4;

/// Grouped-query attention and a feed-forward block. The code derives the
/// number of heads from the size of its input.
struct Decoder : nn::Module {
  Decoder(std::int64_t query_heads, std::int64_t key_heads)
      : num_groups(query_heads / key_heads) {
    const std::int64_t width = query_heads * kHeadSize;
    const std::int64_t keys = key_heads * kHeadSize;
    words = register_module("words", VocabParallelEmbedding(kWords, width));
    qkv = register_module(
        "qkv",
        ColumnParallelLinear(
            width,
            width + 2 * keys,
            ColwiseParallel{
                .num_heads = key_heads, .projections = {width, keys, keys}}));
    out = register_module(
        "out",
        RowParallelLinear(
            width, width, RowwiseParallel{.num_heads = key_heads}));
    up = register_module(
        "up", ColumnParallelLinear(nn::LinearOptions(width, 7).bias(false)));
    down = register_module("down", RowParallelLinear(7, width));
    const torch::NoGradGuard no_grad;
    words->weight.mul_(0.3);
  }

  Tensor forward(const Tensor& tokens) {
    Tensor x = words(tokens);
    const Tensor fused = qkv(x);
    const std::int64_t keys = fused.size(-1) / (num_groups + 2);
    const auto parts =
        fused.split_with_sizes({num_groups * keys, keys, keys}, -1);
    const auto heads = [](const Tensor& part) {
      return part.unflatten(-1, {-1, kHeadSize}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(parts[0]),
        heads(parts[1]).repeat_interleave(num_groups, 1),
        heads(parts[2]).repeat_interleave(num_groups, 1),
        {},
        0,
        /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).flatten(-2));
    x = x + down(torch::gelu(up(x)));
    return torch::matmul(x, words->weight.t());
  }

  static Tensor inputs(int step, std::int64_t num_samples) {
    return (torch::arange(num_samples * kTime) * 5 + step)
        .remainder(kWords)
        .view({-1, kTime});
  }

  std::int64_t num_groups;
  VocabParallelEmbedding words{nullptr};
  ColumnParallelLinear qkv{nullptr}, up{nullptr};
  RowParallelLinear out{nullptr}, down{nullptr};
};

std::shared_ptr<Decoder> make(std::int64_t queries, std::int64_t keys) {
  // Ranks that are threads share one generator.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(11);
  return std::make_shared<Decoder>(queries, keys);
}

struct Outcome {
  std::vector<double> losses;
  Weights first, last;
};

struct Shape {
  std::int64_t query_heads = 5;
  std::int64_t key_heads = 5;
};

Outcome train(
    const Shape& shape,
    const ParallelOptions& parallel,
    const WorldOptions& world) {
  const Accelerator accelerator({.parallel = parallel, .world = world});
  const auto net = make(shape.query_heads, shape.key_heads);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.2));
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto weights = [&, &model = model] {
    return named(accelerator.get_state_dict(model, {.rank0_only = false}));
  };
  Outcome outcome;
  for (const auto& [name, weight] : weights())
    outcome.first[name] = weight.clone();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const std::int64_t share = 4 / accelerator.mesh().batch_count();
    const Tensor tokens = Decoder::inputs(step, 4).narrow(
        0, accelerator.mesh().batch_rank() * share, share);
    const Tensor loss = nn::functional::cross_entropy(
        model(tokens).flatten(0, 1), tokens.flatten());
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    outcome.losses.push_back(accelerator.reduce(loss.detach(), ReduceOp::mean)
                                 .template item<double>());
  }
  outcome.last = weights();
  return outcome;
}

void expect_parity(
    const Shape& shape,
    const ParallelOptions& parallel,
    int num_ranks) {
  Outcome expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train(shape, {}, world);
  });
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Outcome found = train(shape, parallel, world);
    for (const auto& [name, weight] : expected.first)
      EXPECT_TRUE(torch::equal(found.first.at(name), weight)) << name;
    for (const auto& [name, weight] : expected.last) {
      EXPECT_TRUE(torch::allclose(found.last.at(name), weight, 2e-5, 2e-5))
          << name;
    }
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(found.losses[step], expected.losses[step], 2e-5);
  });
}

TEST(ParallelLayers, TrainAsOneProcessDoes) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    expect_parity(
        {}, {.tensor = ranks, .parallelize_plan = ParallelizePlan{}}, ranks);
  }
}

TEST(ParallelLayers, KeepGroupsOfQueriesTogether) {
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    expect_parity(
        {.query_heads = 6, .key_heads = 3},
        {.tensor = ranks, .parallelize_plan = ParallelizePlan{}},
        ranks);
  }
}

TEST(ParallelLayers, ComposeWithShardsAndRecomputation) {
  ParallelOptions parallel{
      .shard = 2, .tensor = 2, .parallelize_plan = ParallelizePlan{}};
  expect_parity({}, parallel, 4);
  parallel.activation_checkpointing = ActivationCheckpointingOptions{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 20};
  expect_parity({}, parallel, 4);
}

TEST(ParallelLayers, KeepTheirHeads) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.tensor = 2, .parallelize_plan = ParallelizePlan{}},
         .world = world});
    const auto net = make(6, 3);
    const auto model = accelerator.prepare(net);
    const bool is_first = accelerator.process_index() == 0;
    // The first rank has one of three key heads and its two query heads, with
    // two elements per head: 4 + 2 + 2 of the 24 rows of queries, keys and
    // values.
    EXPECT_EQ(net->qkv->weight.size(0), is_first ? 8 : 16);
    EXPECT_EQ(net->out->weight.size(1), is_first ? 4 : 8);
    EXPECT_EQ(net->words->weight.size(0), is_first ? 6 : 7);
    EXPECT_EQ(net->up->weight.size(0), is_first ? 3 : 4);
  });
}

TEST(ParallelLayers, LoadCheckpointsOfOtherDegrees) {
  const TemporaryDirectory directory;
  for (const int from : {1, 2, 3}) {
    Weights expected;
    const auto on = [&](int ranks, auto&& body) {
      run_on_ranks(ranks, [&](const WorldOptions& world) {
        const Accelerator accelerator(
            {.parallel =
                 {.tensor = ranks, .parallelize_plan = ParallelizePlan{}},
             .world = world});
        const auto net = make(5, 5);
        torch::optim::Adam adam(net->parameters(), 0.01);
        const auto [model, optimizer] = accelerator.prepare(net, adam);
        accelerator.backward(model(Decoder::inputs(ranks, 4)).pow(2).mean());
        optimizer.step();
        body(accelerator, model);
      });
    };
    const auto path = directory / std::to_string(from);
    on(from, [&](const Accelerator& accelerator, const auto& model) {
      accelerator.save_state(path);
      const Weights mine =
          named(accelerator.get_state_dict(model, {.rank0_only = false}));
      if (accelerator.is_main_process()) expected = mine;
    });
    for (const int to : {1, 2, 3}) {
      on(to, [&](const Accelerator& accelerator, const auto& model) {
        accelerator.load_state(path);
        for (const auto& [name, weight] :
             named(accelerator.get_state_dict(model, {.rank0_only = false})))
          EXPECT_TRUE(torch::equal(weight, expected.at(name))) << name;
      });
    }
  }
}

TEST(ParallelLayers, FollowAPlanThatNamesThem) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .parallelize_plan =
                  ParallelizePlan{
                      {"up", ColwiseParallel{.output_layouts = Replicate{}}},
                      {"down", RowwiseParallel{.input_layouts = Replicate{}}}}},
         .world = world});
    const auto net = make(4, 4);
    const Tensor tokens = Decoder::inputs(0, 2);
    const Tensor expected = make(4, 4)->forward(tokens).detach();
    const auto model = accelerator.prepare(net);
    EXPECT_EQ(net->qkv->weight.size(0), 12);
    EXPECT_EQ(net->up->weight.size(0), accelerator.process_index() + 3);
    EXPECT_TRUE(torch::allclose(model(tokens), expected, 1e-5, 1e-5));
  });
}

TEST(ParallelLayers, AreWhatTheyAreInTheirCopies) {
  const auto net = make(4, 4);
  const auto copy = net->qkv->clone();
  const auto* const layer = copy->as<ColumnParallelLinearImpl>();
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->parallel_style(), net->qkv->parallel_style());
  EXPECT_TRUE(torch::equal(layer->weight, net->qkv->weight));
  EXPECT_FALSE(layer->weight.is_same(net->qkv->weight));
  std::ostringstream text;
  text << *net;
  EXPECT_THAT(
      text.str(),
      ::testing::AllOf(
          ::testing::HasSubstr(
              "(up): accelerate::ColumnParallelLinear(in_features=8, "
              "out_features=7, bias=false)"),
          ::testing::HasSubstr(
              "(words): accelerate::VocabParallelEmbedding(num_embeddings=13, "
              "embedding_dim=8)")));
}

void expect_refused(const ParallelizePlan& plan, const std::string& why) {
  expect_error<ConfigError>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          const Accelerator accelerator(
              {.parallel = {.tensor = 2, .parallelize_plan = plan},
               .world = world});
          (void)accelerator.prepare(make(4, 4));
        });
      },
      why);
}

TEST(ParallelLayers, RefuseHeadsThatDoNotFit) {
  expect_refused(
      {{"qkv", ColwiseParallel{.projections = {8, 8, 8}}}},
      "\"qkv\" has projections without num_heads");
  expect_refused(
      {{"qkv", ColwiseParallel{.num_heads = 4, .projections = {8, 8}}}},
      "has projections [8, 8], which add up to 16, but 24 outputs");
  expect_refused(
      {{"qkv", ColwiseParallel{.num_heads = 3, .projections = {8, 8, 8}}}},
      "has 8 indices in a projection, which 3 heads do not divide");
  expect_refused(
      {{"qkv", ColwiseParallel{.num_heads = 1}}},
      "has 1 heads, which cannot be divided over 2 ranks");
  expect_refused(
      {{"out", RowwiseParallel{.input_layouts = Replicate{}, .num_heads = 4}}},
      "has num_heads, but slices its input itself");
}

}  // namespace parallel_layers_test
}  // namespace accelerate
