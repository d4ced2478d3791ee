// A causal transformer trained on divided sequences ends with the same weights
// as in one process.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace context_training_test {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;

constexpr std::int64_t kWords = 11;
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kHeads = 4;
constexpr int kSteps = 20;

/// Not written for context parallelism: uses torch's attention, and takes
/// positions as an input.
struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto heads = [](const torch::Tensor& t) {
      return t.unflatten(-1, {kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const torch::Tensor attended = at::scaled_dot_product_attention(
        heads(parts[0]),
        heads(parts[1]),
        heads(parts[2]),
        std::nullopt,
        0.0,
        /*is_causal=*/true);
    const torch::Tensor y = x + out(attended.transpose(1, 2).flatten(-2));
    return y + down(torch::gelu(up(norm2(y))));
  }

  torch::nn::LayerNorm norm1 = register_module(
      "norm1",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::LayerNorm norm2 = register_module(
      "norm2",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear qkv =
      register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear out =
      register_module("out", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear up =
      register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl() {
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  torch::Tensor forward(
      const torch::Tensor& words,
      const torch::Tensor& positions) {
    torch::Tensor x = words_of(words) + places(positions);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }

  torch::nn::Embedding words_of =
      register_module("words", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Embedding places =
      register_module("places", torch::nn::Embedding(64, kWidth));
  torch::nn::ModuleList blocks;
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(kWidth, kWords));
};
TORCH_MODULE(Transformer);

struct TrainingRun {
  int num_ranks = 1;
  AcceleratorOptions options = {};
  std::int64_t length = 24;
  int window = 1;
  ContextParallelOptions context = {};
  std::map<std::string, std::string> variables = {};
};

struct Result {
  std::map<std::string, torch::Tensor> weights;
  std::vector<double> losses;
};

constexpr std::int64_t kIgnored = -100;

/// Samples per step, for any number of ranks.
constexpr std::int64_t kBatch = 4;

Result train(const TrainingRun& run) {
  torch::manual_seed(5);
  const auto words =
      torch::randint(kWords, {kSteps * run.window * kBatch, run.length + 1});
  const Transformer first;
  Result result;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = run.options;
    options.world = world;
    options.gradient_accumulation_steps = run.window;
    Accelerator accelerator(options);
    Transformer net;
    {
      const torch::NoGradGuard no_grad;
      const auto from = first->named_parameters();
      for (auto& item : net->named_parameters())
        item.value().copy_(from[item.key()]);
    }
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const std::int64_t share = kBatch / accelerator.mesh().batch_count();
    const std::int64_t first_sample = accelerator.mesh().batch_rank() * share;
    std::vector<double> losses;
    for (int step = 0; step < kSteps * run.window; ++step) {
      const auto micro_step = accelerator.accumulate(model);
      const auto batch = words.narrow(0, step * kBatch + first_sample, share);
      const auto inputs = batch.narrow(1, 0, run.length).clone();
      const auto labels = batch.narrow(1, 1, run.length).clone();
      const auto positions = torch::arange(run.length);
      ContextParallelOptions context = run.context;
      context.pad_values = {0, kIgnored, 0};
      const auto scope = accelerator.maybe_context_parallel(
          {inputs, labels, positions}, {1, 1, 0}, {}, context);
      const auto logits = model(inputs, positions);
      const auto sum = torch::nn::functional::cross_entropy(
          logits.flatten(0, 1).to(torch::kFloat),
          labels.flatten(),
          torch::nn::functional::CrossEntropyFuncOptions()
              .ignore_index(kIgnored)
              .reduction(torch::kSum));
      const auto loss = scope.mean(sum, labels.ne(kIgnored).sum());
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(
          accelerator.reduce(loss.detach(), ReduceOp::mean).item<double>());
    }
    const auto weights = accelerator.get_state_dict(model);
    if (!accelerator.is_main_process()) return;
    result.losses = losses;
    for (const auto& [name, weight] : weights)
      result.weights.emplace(name, weight.detach().clone());
  });
  return result;
}

void expect_like_one_process(const TrainingRun& run, double tolerance) {
  TrainingRun alone = run;
  alone.num_ranks = 1;
  alone.options.parallel.replicate.reset();
  alone.options.parallel.shard.reset();
  alone.options.parallel.context.reset();
  alone.options.parallel.parallelism_config.reset();
  alone.options.parallel.fully_sharded.reset();
  const Result expected = train(alone);
  const auto scope = patch_environment(run.variables);
  const Result found = train(run);
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    const torch::Tensor difference =
        (found.weights.at(name) - weight).abs().max() / weight.abs().max();
    EXPECT_LT(difference.item<double>(), tolerance) << name;
  }
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], tolerance * 3) << i;
}

constexpr double kExact = 2e-5;

TEST(ContextTraining, EndsWithTheWeightsOfOneProcess) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    TrainingRun run{.num_ranks = ranks};
    run.options.parallel.context = ranks;
    expect_like_one_process(run, kExact);
  }
}

TEST(ContextTraining, WorksForEachCutAndRotation) {
  TrainingRun run{.num_ranks = 3};
  run.options.parallel.context = 3;
  run.context.cut = SequenceCut::contiguous;
  run.context.rotation = KeyValueRotation::alltoall;
  expect_like_one_process(run, kExact);
  run.context.exchange_heads = true;
  expect_like_one_process(run, kExact);
}

TEST(ContextTraining, PadsLengthsThatDoNotDivide) {
  TrainingRun run{.num_ranks = 3, .length = 19};
  run.options.parallel.context = 3;
  expect_like_one_process(run, kExact);
  run.context.exchange_heads = true;
  expect_like_one_process(run, kExact);
}

TEST(ContextTraining, ComposesWithReplicas) {
  TrainingRun run{.num_ranks = 4};
  run.options.parallel.context = 2;
  run.options.parallel.replicate = 2;
  expect_like_one_process(run, kExact);
}

TEST(ContextTraining, ComposesWithShards) {
  TrainingRun run{.num_ranks = 4};
  run.options.parallel.parallelism_config = ParallelismConfig{
      .dp_shard_size = 2, .cp_size = 2, .cp_comm_strategy = "alltoall"};
  run.options.parallel.fully_sharded = FullyShardedDataParallelOptions{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 200};
  expect_like_one_process(run, kExact);
}

torch::Tensor loss_of(
    const torch::Tensor& logits,
    const torch::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1),
      labels.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

// Ranks that share a sequence run out of data together, so no rank waits in a
// ring for one that has none.
TEST(ContextTraining, JoinsReplicasWithDifferentNumbersOfSteps) {
  constexpr std::int64_t kLength = 12;
  const std::vector<int> steps{3, 1};  // by batch rank
  torch::manual_seed(6);
  const auto words = torch::randint(kWords, {2, 3, 2, kLength + 1});
  const Transformer first;
  const auto copy_first = [&](Transformer& net) {
    const torch::NoGradGuard no_grad;
    const auto from = first->named_parameters();
    for (auto& item : net->named_parameters())
      item.value().copy_(from[item.key()]);
  };
  const auto sgd_of = [](Transformer& net) {
    return torch::optim::SGD(
        net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  };

  Transformer expected;
  copy_first(expected);
  torch::optim::SGD alone = sgd_of(expected);
  for (int step = 0; step < 3; ++step) {
    torch::Tensor sum = torch::zeros({});
    for (int rank = 0; rank < 2; ++rank) {
      if (step >= steps[static_cast<std::size_t>(rank)]) continue;
      const auto batch = words[rank][step];
      const auto logits = expected->forward(
          batch.narrow(1, 0, kLength), torch::arange(kLength));
      sum =
          sum + loss_of(logits, batch.narrow(1, 1, kLength)) / (2.0 * kLength);
    }
    alone.zero_grad();
    (sum / 2).backward();
    alone.step();
  }

  run_on_ranks(4, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.replicate = 2, .context = 2}, .world = world});
    Transformer net;
    copy_first(net);
    torch::optim::SGD sgd = sgd_of(net);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto batch_rank =
        static_cast<std::size_t>(accelerator.mesh().batch_rank());
    accelerator.join_uneven_inputs([&, &model = model, &optimizer = optimizer] {
      for (int step = 0; step < steps[batch_rank]; ++step) {
        const auto batch = words[accelerator.mesh().batch_rank()][step];
        const auto inputs = batch.narrow(1, 0, kLength).clone();
        const auto labels = batch.narrow(1, 1, kLength).clone();
        const auto positions = torch::arange(kLength);
        const auto scope = accelerator.maybe_context_parallel(
            {inputs, labels, positions}, {1, 1, 0});
        const auto sum = loss_of(model(inputs, positions), labels);
        accelerator.backward(scope.mean(sum, torch::tensor(labels.numel())));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    for (const auto& item : net->named_parameters()) {
      const auto want = expected->named_parameters()[item.key()];
      EXPECT_TRUE(torch::allclose(item.value(), want, 1e-4, 1e-6))
          << item.key();
    }
  });
}

TEST(ContextTraining, TakesMeansInEveryDtypeAndOverNoTokens) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto scope =
        accelerator.maybe_context_parallel({torch::arange(8)}, {0});
    for (const auto dtype :
         {torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      for (const int tokens : {0, 2}) {
        const auto sum =
            torch::full(
                {}, 6, torch::TensorOptions(dtype).device(accelerator.device()))
                .requires_grad_();
        const auto mean = scope.mean(sum, torch::tensor(tokens));
        mean.backward();
        EXPECT_EQ(mean.scalar_type(), dtype);
        EXPECT_EQ(mean.item<double>(), tokens == 0 ? 12 : 3);
        EXPECT_EQ(sum.grad().scalar_type(), dtype);
        EXPECT_EQ(sum.grad().item<double>(), tokens == 0 ? 0 : 0.5);
      }
    }
  });
}

TEST(ContextTraining, FollowsTheLauncher) {
  TrainingRun run{.num_ranks = 2};
  run.variables = {
      {"PARALLELISM_CONFIG_CP_SIZE", "2"},
      {"PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall"}};
  expect_like_one_process(run, kExact);
  run.variables = {{"PARALLELISM_CONFIG_SP_SIZE", "2"}};
  expect_like_one_process(run, kExact);
}

TEST(ContextTraining, Accumulates) {
  TrainingRun run{.num_ranks = 4, .window = 3};
  run.options.parallel.context = 2;
  run.options.parallel.replicate = 2;
  expect_like_one_process(run, kExact);
}

TEST(ContextTraining, RecomputesSegments) {
  TrainingRun run{.num_ranks = 2};
  run.options.parallel.context = 2;
  run.options.parallel.activation_checkpointing =
      ActivationCheckpointingOptions{
          .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
          .min_num_params = 200};
  expect_like_one_process(run, kExact);
  run.context.exchange_heads = true;
  expect_like_one_process(run, kExact);
}

// Sums round differently in bf16: by a few units of 2^-8 over 20 steps.
TEST(ContextTraining, WorksUnderAutocast) {
  TrainingRun run{.num_ranks = 2};
  run.options.parallel.context = 2;
  run.options.mixed_precision = Precision::bf16;
  expect_like_one_process(run, 2e-2);
}

TEST(ContextParallelScope, DividesBuffersAndGivesThemBack) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto ids = torch::arange(8).view({1, 8});
    const auto kept = torch::arange(8);
    const bool is_first = accelerator.process_index() == 0;
    {
      const auto scope =
          accelerator.maybe_context_parallel({ids, kept}, {1, 0}, {kept});
      EXPECT_THAT(ids.sizes().vec(), ElementsAre(1, 4));
      const torch::Tensor expected =
          is_first ? torch::tensor({0, 1, 6, 7}) : torch::tensor({2, 3, 4, 5});
      EXPECT_TRUE(torch::equal(ids.flatten(), expected));
      EXPECT_TRUE(torch::equal(scope.positions(), expected));
    }
    EXPECT_TRUE(torch::equal(ids, torch::arange(8).view({1, 8})));
    EXPECT_EQ(kept.size(0), 4);
  });
}

/// Attention of `inputs`, whole sequences, as one process computes it.
at::Tensor attend(const at::Tensor& inputs, const at::Tensor& mask = {}) {
  return at::scaled_dot_product_attention(
      inputs,
      inputs,
      inputs,
      mask.defined() ? std::optional(mask) : std::nullopt,
      0.0,
      /*is_causal=*/!mask.defined());
}

TEST(ContextParallelScope, TakesTheLengthOfTensorsThatAreCutAlready) {
  const auto whole = torch::rand({1, 2, 8, 4}, torch::kDouble);
  const auto expected = attend(whole);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto scope =
        accelerator.maybe_context_parallel({}, {}, {}, {.sequence_length = 8});
    const torch::Tensor mine = scope.positions();
    EXPECT_TRUE(torch::allclose(
        attend(whole.index_select(2, mine)), expected.index_select(2, mine)));
  });
}

TEST(ContextParallelScope, KeepsPackedDocumentsApart) {
  const auto whole = torch::rand({1, 2, 8, 4}, torch::kDouble);
  const auto documents = torch::tensor({0, 0, 0, 1, 1, 2, 2, 2});
  const auto mask = documents.unsqueeze(1).eq(documents).logical_and(
      torch::ones({8, 8}, torch::kBool).tril());
  const auto expected = attend(whole, mask);
  for (const int ranks : {1, 2}) {
    run_on_ranks(ranks, [&](const WorldOptions& world) {
      Accelerator accelerator({.parallel = {.context = ranks}, .world = world});
      const auto scope = accelerator.maybe_context_parallel(
          {}, {}, {}, {.document_ids = documents, .sequence_length = 8});
      const torch::Tensor mine = scope.positions();
      EXPECT_TRUE(torch::allclose(
          attend(whole.index_select(2, mine)), expected.index_select(2, mine)));
    });
  }
}

TEST(ContextParallelScope, TakesSequencesOfOneLengthIfToldSo) {
  const ParallelismConfig fixed{
      .sp_size = 2, .sp_seq_length = 8, .sp_seq_length_is_variable = false};
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel = {.parallelism_config = fixed}, .world = world});
    const auto right = torch::zeros({8}), wrong = torch::zeros({4});
    EXPECT_EQ(
        accelerator.maybe_context_parallel({right}, {0}).shards().length(), 8);
    expect_error<ConfigError>(
        [&] { (void)accelerator.maybe_context_parallel({wrong}, {0}); },
        "buffer 0 has 4 positions along dimension 0, but the sequence has 8");
  });
}

TEST(ContextParallelScope, LeavesCrossAttentionAlone) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto ids = torch::zeros({8});
    const auto scope = accelerator.maybe_context_parallel({ids}, {0});
    const auto query = torch::ones({1, 1, 4, 2}),
               memory = torch::ones({1, 1, 3, 2});
    EXPECT_TRUE(torch::equal(
        at::scaled_dot_product_attention(query, memory, memory), query));
    expect_error<ConfigError>(
        [&] { at::scaled_dot_product_attention(memory, memory, memory); },
        "got 3 positions");
  });
}

TEST(ContextParallelScope, RefusesWhatItCannotDivide) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto ids = torch::zeros({2, 8});
    const auto refuse = [&](const std::vector<at::Tensor>& buffers,
                            const std::vector<std::int64_t>& dims,
                            const std::string& phrase,
                            const std::vector<at::Tensor>& kept = {}) {
      expect_error<ConfigError>(
          [&] {
            (void)accelerator.maybe_context_parallel(buffers, dims, kept);
          },
          phrase);
    };
    refuse({ids}, {}, "1 buffers and 0 dimensions");
    refuse({ids}, {2}, "along dimension 2");
    refuse(
        {ids, torch::zeros({6})},
        {1, 0},
        "all buffers must have the same length");
    refuse({torch::zeros({6})}, {0}, "pass pad_values");
    refuse(
        {torch::zeros({8}).requires_grad_(true)}, {0}, "requires a gradient");
    refuse({ids}, {1}, "must be among the buffers", {torch::zeros({8})});
    refuse({}, {}, "no buffers");
    EXPECT_THAT(ids.sizes().vec(), ElementsAre(2, 8));
  });
}

TEST(ContextTraining, RefusesLayersThatWouldSeeOneRanksPositions) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    torch::nn::Sequential recurrent(torch::nn::GRU(4, 4));
    expect_error<ConfigError>(
        [&] { (void)accelerator.prepare(recurrent); },
        "but 0 is a recurrent layer");
  });
}

}  // namespace context_training_test
}  // namespace accelerate
