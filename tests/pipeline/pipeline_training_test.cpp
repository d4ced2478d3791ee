#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <mutex>

#include <accelerate/accelerator.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/pipeline.h>
#include <accelerate/prepare_pippy.h>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace pipeline_training_test {

namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;

// Layers with running statistics, and an embedding whose weight the last layer
// also uses.
struct Net {
  torch::nn::Embedding embedding{11, 6};
  torch::nn::Linear linear{6, 6};
  torch::nn::BatchNorm1d norm{6};
  torch::nn::Linear last{6, 6};

  Net() {
    torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : parameters()) {
      const auto n = static_cast<double>(name.size());
      tensor.copy_(
          torch::sin(torch::arange(tensor.numel()) * n).view_as(tensor) * 0.5);
    }
  }
  [[nodiscard]] std::vector<std::pair<std::string, Tensor>> parameters() const {
    return {
        {"embedding.weight", embedding->weight},
        {"linear.weight", linear->weight},
        {"linear.bias", linear->bias},
        {"norm.weight", norm->weight},
        {"norm.bias", norm->bias},
        {"last.weight", last->weight},
        {"last.bias", last->bias}};
  }
  [[nodiscard]] PipelineLayers layers() const {
    PipelineLayers layers;
    layers.add("embedding", embedding)
        .add("linear", linear)
        .add("norm", norm)
        .add("tanh", [](Tensor x) { return torch::tanh(x); })
        .add(
            "last",
            last,
            [embedding = embedding](torch::nn::LinearImpl& module, Tensor x) {
              return module.forward(x).matmul(embedding->weight.t());
            })
        .uses("embedding", embedding);
    return layers;
  }
};

const std::map<int, std::vector<std::string>> kSplitPoints{
    {1, {}},
    {2, {"norm"}},
    {3, {"linear", "tanh"}},
    {4, {"linear", "tanh", "last"}}};

struct Batch {
  Tensor words;
  Tensor labels;
};

// Four rows for each of four micro-batches: batch normalisation over two rows
// has no gradient except rounding errors.
Batch batch(int step, std::int64_t rows = 16) {
  const Tensor numbers = torch::arange(rows) + step * rows;
  return {numbers * 7 % 11, numbers * 5 % 11};
}

Tensor loss_of(const Tensor& logits, const Tensor& labels) {
  return F::cross_entropy(logits, labels);
}

struct Run {
  int stages = 1;
  int replicas = 1;
  int shards = 1;
  int window = 1;
  int first_step = 0;
  int num_steps = 3;
  Precision precision = Precision::no;
  std::string load_from = {};
  std::string save_to = {};
  std::string save_model_to = {};
  std::string schedule = "1F1B";
  bool clips_in_step = false;
};

struct Outcome {
  Weights weights;
  Weights state_dict;
  std::vector<double> norms;
  std::vector<double> losses;
};

Outcome train(const Run& run) {
  Outcome outcome;
  std::mutex mutex;
  const int num_batches = run.replicas * run.shards;
  run_on_ranks(run.stages * num_batches, [&](const WorldOptions& world) {
    std::unique_lock lock(mutex);
    const Net net;
    lock.unlock();
    const Accelerator accelerator(
        {.mixed_precision = run.precision,
         .gradient_accumulation_steps = run.window,
         .parallel =
             {.replicate = run.replicas,
              .shard = run.shards,
              .pipeline = run.stages},
         .world = world});
    const Pipeline pipeline(
        accelerator,
        net.layers(),
        {.split_points = kSplitPoints.at(run.stages),
         .schedule = parse_pipeline_schedule(run.schedule),
         .num_micro_batches = 4 / num_batches});
    torch::optim::SGD sgd(
        pipeline.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    auto optimizer = accelerator.prepare(sgd);
    if (!run.load_from.empty()) accelerator.load_state(run.load_from);
    std::vector<double> norms, losses;
    for (int step = run.first_step; step < run.num_steps; ++step) {
      for (int i = 0; i < run.window; ++i) {
        const auto micro_step = accelerator.accumulate(pipeline.model());
        optimizer.zero_grad();
        const Batch all = batch(step * run.window + i);
        const int replica = accelerator.mesh().batch_rank();
        const auto part = [&](const Tensor& tensor) {
          return tensor.chunk(num_batches)[static_cast<std::size_t>(replica)];
        };
        losses.push_back(
            pipeline.step(part(all.words), part(all.labels), &loss_of)
                .loss.item<double>());
        const bool ends_window = accelerator.sync_gradients();
        Tensor clipped;
        if (run.clips_in_step) {
          clipped = optimizer.step({.max_norm = 0.3});
        } else {
          if (ends_window)
            clipped = accelerator.clip_grad_norm_(pipeline.model(), 0.3);
          optimizer.step();
        }
        if (ends_window) {
          const auto norm = clipped.item<double>();
          // fp16 finds its scale by overflowing.
          norms.push_back(std::isfinite(norm) ? norm : -1);
        }
      }
    }
    if (!run.save_to.empty()) accelerator.save_state(run.save_to);
    if (!run.save_model_to.empty())
      accelerator.save_model(pipeline.model(), run.save_model_to);
    Weights state_dict;
    for (const auto& [name, tensor] : pipeline.model().state_dict())
      state_dict[name] = tensor.detach().clone();
    lock.lock();
    if (outcome.norms.empty()) outcome.norms = norms;
    EXPECT_EQ(outcome.norms, norms);
    if (accelerator.mesh().batch_rank() == 0) outcome.losses = losses;
    for (const auto& [name, tensor] : net.parameters())
      if (run.shards == 1 && !tensor.is_meta())
        outcome.weights[name] = tensor.detach().clone();
    if (*world.rank == 0) outcome.state_dict = state_dict;
  });
  return outcome;
}

void expect_close(const Weights& found, const Weights& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name).allclose(weight, 1e-5, 1e-6)) << name;
  }
}

void expect_close(
    const std::vector<double>& found,
    const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-5 * (1 + expected[i]));
}

TEST(PipelineTraining, ClipsTheNormOfAllStages) {
  const Outcome alone = train({});
  for (const int stages : {2, 3, 4}) {
    for (const char* schedule : {"1F1B", "ZBH1"}) {
      const Outcome found = train({.stages = stages, .schedule = schedule});
      expect_close(found.norms, alone.norms);
      expect_close(found.losses, alone.losses);
      expect_close(found.weights, alone.weights);
    }
  }
}

TEST(PipelineTraining, ClipsInTheStep) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    for (const int window : {1, 2}) {
      for (const int stages : {1, 2, 3}) {
        const int replicas = stages == 2 ? 2 : 1;
        SCOPED_TRACE(
            ::testing::Message() << name_of(precision) << ", window " << window
                                 << ", " << stages << " stages");
        const auto train_with = [&](bool clips_in_step) {
          return train(
              {.stages = stages,
               .replicas = replicas,
               .window = window,
               .precision = precision,
               .schedule = stages == 3 ? "ZBH1" : "1F1B",
               .clips_in_step = clips_in_step});
        };
        const Outcome apart = train_with(false);
        const Outcome found = train_with(true);
        expect_close(found.norms, apart.norms);
        expect_close(found.weights, apart.weights);
      }
    }
  }
}

TEST(PipelineTraining, AveragesOverReplicas) {
  expect_close(
      train({.stages = 2, .replicas = 2}).weights,
      train({.replicas = 2}).weights);
}

TEST(PipelineTraining, ShardsAStage) {
  expect_close(
      train({.stages = 2, .shards = 2}).state_dict,
      train({.shards = 2}).state_dict);
  expect_close(
      train({.stages = 3, .replicas = 2, .shards = 2}).state_dict,
      train({.replicas = 2, .shards = 2}).state_dict);
}

TEST(PipelineTraining, AccumulatesAWindow) {
  expect_close(
      train({.stages = 3, .window = 2}).weights, train({.window = 2}).weights);
  expect_close(
      train({.stages = 2, .replicas = 2, .window = 2}).weights,
      train({.replicas = 2, .window = 2}).weights);
}

TEST(PipelineTraining, ComputesInLowerPrecision) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Outcome alone = train({.precision = precision});
    const Outcome found = train({.stages = 3, .precision = precision});
    expect_close(found.losses, alone.losses);
    expect_close(found.weights, alone.weights);
  }
}

TEST(PipelineTraining, LoadsOnAnyNumberOfStages) {
  const Outcome whole = train({.num_steps = 4});
  for (const int saved : {1, 2, 4}) {
    const TemporaryDirectory directory;
    const std::string path = directory.path() / "state";
    train({.stages = saved, .num_steps = 2, .save_to = path});
    for (const int loaded : {1, 2, 3}) {
      SCOPED_TRACE(
          std::to_string(saved) + " stages to " + std::to_string(loaded));
      const Outcome found = train(
          {.stages = loaded,
           .first_step = 2,
           .num_steps = 4,
           .load_from = path});
      expect_close(found.weights, whole.weights);
    }
  }
}

TEST(PipelineTraining, SavesTheWholeModel) {
  const Outcome alone = train({});
  for (const int stages : {2, 4}) {
    const TemporaryDirectory directory;
    const std::string path = directory.path();
    const Outcome found = train({.stages = stages, .save_model_to = path});
    expect_close(found.state_dict, alone.state_dict);
    EXPECT_EQ(found.state_dict.count("norm.num_batches_tracked"), 1);
    run_on_ranks(3, [&](const WorldOptions& world) {
      const Net net;
      const Accelerator accelerator(
          {.parallel = {.pipeline = 3}, .world = world});
      const Pipeline pipeline(
          accelerator,
          net.layers(),
          {.split_points = kSplitPoints.at(3), .num_micro_batches = 1});
      accelerator.load_model(pipeline.model(), path);
      for (const auto& [name, tensor] : net.parameters()) {
        if (tensor.is_meta()) continue;
        EXPECT_TRUE(tensor.allclose(alone.weights.at(name), 1e-5, 1e-6))
            << name;
      }
    });
  }
}

PipelineLayers linear_layers() {
  PipelineLayers layers;
  for (int i = 0; i < 4; ++i) {
    torch::nn::Linear linear(5, 5);
    torch::NoGradGuard no_grad;
    linear->weight.copy_(
        torch::sin(torch::arange(25) * (i + 1)).view({5, 5}) * 0.5);
    linear->bias.fill_(0.1 * i);
    layers.add("layer" + std::to_string(i), linear);
  }
  return layers;
}

TEST(PreparePippy, ComputesInAllRanks) {
  const Tensor x = torch::randn({5, 5});
  const PipelineLayers alone = linear_layers();
  detail::PipelineValue value = detail::pipeline_value(x);
  for (const auto& layer : alone.layers()) value = layer.forward(value);
  const PipelineTensors expected = value.tensors;
  for (const bool gathers : {false, true}) {
    for (const int ranks : {1, 2, 4}) {
      testing::run_in_worlds(ranks, [&](const World& world) {
        const PippyModel model = prepare_pippy(
            world,
            linear_layers(),
            {.num_chunks = 3, .gather_output = gathers});
        for (int i = 0; i < 2; ++i) {
          const PipelineTensors output = world.rank() == 0 ? model(x) : model();
          const bool has_output = gathers || world.rank() == ranks - 1;
          ASSERT_EQ(output.size(), has_output ? 1 : 0);
          if (!has_output) continue;
          EXPECT_TRUE(output[0].allclose(expected[0], 1e-5, 1e-6));
        }
      });
    }
  }
}

// As in Accelerate, the first device keeps room for the largest layer.
TEST(PreparePippy, DividesAutomatically) {
  testing::run_in_worlds(2, [](const World& world) {
    PipelineLayers layers;
    layers.add("a", torch::nn::Linear(8, 8))
        .add("b", torch::nn::Linear(8, 8))
        .add("c", torch::nn::Linear(8, 8))
        .add("d", torch::nn::Linear(8, 8));
    const PippyModel model = prepare_pippy(
        world,
        layers,
        {.split_points = {"auto"}, .no_split_module_classes = {"Linear"}});
    EXPECT_THAT(model.hf_split_points(), ElementsAre("b"));
  });
}

TEST(PreparePippy, TakesSplitPoints) {
  testing::run_in_worlds(2, [](const World& world) {
    const PippyModel model =
        prepare_pippy(world, linear_layers(), {.split_points = {"layer1"}});
    EXPECT_THAT(model.hf_split_points(), ElementsAre("layer1"));
    EXPECT_EQ(model.module()->parameters().size(), world.rank() == 0 ? 2 : 6);
    expect_error<ConfigError>(
        [&] {
          prepare_pippy(world, linear_layers(), {.split_points = {"nowhere"}});
        },
        "split point \"nowhere\" must be a layer");
    expect_error<ConfigError>(
        [&] { prepare_pippy(world, linear_layers(), {.num_chunks = 0}); },
        "num_chunks must be at least 1, but is 0");
    expect_error<ConfigError>(
        [&] { model(torch::ones({0, 5})); }, "at least one sample on rank 0");
    EXPECT_EQ(model(torch::ones({1, 5})).size(), world.rank());
  });
}

}  // namespace pipeline_training_test
}  // namespace accelerate
