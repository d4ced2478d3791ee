// Float8 with other techniques: ranks together compute what one process
// computes.
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>
#include <accelerate/pipeline.h>

#include "support/float8_recipes.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {

namespace float8_parity_test {

namespace nn = torch::nn;
using at::Tensor;
using testing::float8_recipes;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;

constexpr std::int64_t kRows = 32;
constexpr std::int64_t kWidth = 32;
// Brings gradients into the range of e5m2, since delayed scaling begins with 1.
constexpr double kScale = 1 << 14;

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 5; ++i) layers->push_back(nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (Tensor& parameter : parameters())
      parameter.copy_(normal(parameter.sizes(), seed++) * 0.15);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers)
      x = torch::gelu(layer->as<nn::Linear>()->forward(x));
    return x;
  }
  [[nodiscard]] PipelineLayers for_pipeline() const {
    PipelineLayers all;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      all.add(
          "layers." + std::to_string(i),
          layers->ptr<nn::LinearImpl>(i),
          [](nn::LinearImpl& layer, Tensor x) {
            return torch::gelu(layer.forward(x));
          });
    }
    return all;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Net);

Tensor loss_of(const Tensor& found, const Tensor& x) {
  return torch::square(found - torch::sin(x)).mean() * kScale;
}

struct Training {
  FP8Recipe recipe = AORecipeKwargs();
  int num_micro_batches = 1;
  int num_steps = 4;
  /// Split points of a pipeline; one process if unset.
  std::optional<std::vector<std::string>> stages = std::nullopt;
  std::string schedule = "1F1B";
  std::string load = {};
  std::string save = {};
  int first_step = 0;
};

Tensor batch_of(int step) {
  return normal({kRows, kWidth}, static_cast<std::uint64_t>(100 + step));
}

Weights train_stages(const Training& run) {
  Weights weights;
  std::mutex mutex;
  const int num_ranks = static_cast<int>(run.stages->size()) + 1;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = run.recipe,
         .autocast = {.enabled = false},
         .parallel = {.pipeline = num_ranks},
         .world = world});
    const Net net;
    const Pipeline pipeline(
        accelerator,
        net->for_pipeline(),
        {.split_points = *run.stages,
         .schedule = parse_pipeline_schedule(run.schedule),
         .num_micro_batches = run.num_micro_batches});
    torch::optim::SGD sgd(pipeline.parameters(), 0.05 / kScale);
    auto optimizer = accelerator.prepare(sgd);
    if (!run.load.empty()) accelerator.load_state(run.load);
    for (int step = run.first_step; step < run.num_steps; ++step) {
      optimizer.zero_grad();
      const Tensor x = batch_of(step);
      static_cast<void>(pipeline.step(x, x, &loss_of));
      optimizer.step();
    }
    if (!run.save.empty()) accelerator.save_state(run.save);
    const std::lock_guard lock(mutex);
    for (const auto& item : net->named_parameters()) {
      if (!item.value().is_meta())
        weights[item.key()] = item.value().detach().clone();
    }
  });
  return weights;
}

Weights train_alone(const Training& run) {
  Weights weights;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = run.recipe,
         .autocast = {.enabled = false},
         .gradient_accumulation_steps = run.num_micro_batches,
         .world = world});
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.05 / kScale);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    if (!run.load.empty()) accelerator.load_state(run.load);
    for (int step = run.first_step; step < run.num_steps; ++step) {
      for (const Tensor& x : batch_of(step).chunk(run.num_micro_batches)) {
        const auto micro_step = accelerator.accumulate(model);
        optimizer.zero_grad();
        accelerator.backward(loss_of(model(x), x));
        optimizer.step();
      }
    }
    if (!run.save.empty()) accelerator.save_state(run.save);
    for (const auto& item : net->named_parameters())
      weights[item.key()] = item.value().detach().clone();
  });
  return weights;
}

void expect_equal(const Weights& found, const Weights& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(at::equal(found.at(name), weight))
        << name << " differs by "
        << (found.at(name) - weight).abs().max().item<double>();
  }
}

const std::map<int, std::vector<std::string>> kSplitPoints{
    {2, {"layers.2"}},
    {3, {"layers.1", "layers.3"}}};

// The first and the last layer that stay unconverted are the model's, not a
// stage's.
TEST(Float8Parity, OfPipelinesIsExact) {
  for (const auto& [name, recipe] : float8_recipes()) {
    const Weights expected =
        train_alone({.recipe = recipe, .num_micro_batches = 4});
    for (const auto& [ranks, points] : kSplitPoints) {
      // ZBH1 computes gradients of inputs and of weights at different times.
      const std::string schedule = ranks == 3 ? "1F1B" : "ZBH1";
      SCOPED_TRACE(name + " " + schedule);
      expect_equal(
          train_stages(
              {.recipe = recipe,
               .num_micro_batches = 4,
               .stages = points,
               .schedule = schedule}),
          expected);
    }
  }
}

TEST(Float8Parity, OfPipelinesChoosesLayersOfTheWholeModel) {
  std::mutex mutex;
  std::string lines;
  run_on_ranks(2, [&](const WorldOptions& options) {
    WorldOptions world = options;
    world.logger = Logger(
        [&](const LogRecord& record) {
          const std::lock_guard lock(mutex);
          if (record.message.find("linear layers compute") != std::string::npos)
            lines += record.message;
        },
        LogLevel::info);
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .parallel = {.pipeline = 2},
         .world = world});
    const Net net;
    const Pipeline pipeline(
        accelerator, net->for_pipeline(), {.split_points = {"layers.2"}});
  });
  EXPECT_THAT(
      lines,
      ::testing::HasSubstr("3 of 5 linear layers compute in float8\n"
                           "layers.0: not float8 (the first linear layer)\n"
                           "layers.1: float8\n"
                           "layers.2: float8\n"
                           "layers.3: float8\n"
                           "layers.4: not float8 (the last linear layer)"));
}

TEST(Float8Parity, OfScalesInCheckpointsOfOtherStages) {
  const TERecipeKwargs recipe{.amax_history_len = 4};
  const Weights expected =
      train_alone({.recipe = recipe, .num_micro_batches = 2, .num_steps = 6});
  for (const auto& [before, after] :
       {std::pair(1, 2), std::pair(2, 1), std::pair(2, 3)}) {
    SCOPED_TRACE(std::to_string(before) + " to " + std::to_string(after));
    const TemporaryDirectory directory;
    Training first{.recipe = recipe, .num_micro_batches = 2, .num_steps = 3};
    first.save = directory.path() / "state";
    if (before > 1) first.stages = kSplitPoints.at(before);
    static_cast<void>(before > 1 ? train_stages(first) : train_alone(first));
    Training second{.recipe = recipe, .num_micro_batches = 2, .num_steps = 6};
    second.load = first.save;
    second.first_step = 3;
    if (after > 1) second.stages = kSplitPoints.at(after);
    expect_equal(
        after > 1 ? train_stages(second) : train_alone(second), expected);
  }
}

}  // namespace float8_parity_test

}  // namespace accelerate
