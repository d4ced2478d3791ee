// Float8 layers that are split across ranks have the scales of one process.
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>
#include <accelerate/tensor_parallel.h>

#include "support/float8_recipes.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {

namespace float8_tensor_parallel_test {

namespace nn = torch::nn;
using at::Tensor;
using testing::run_on_ranks;
using testing::Weights;

constexpr std::int64_t kRows = 32;
// Four ranks' slices consist of full blocks.
constexpr std::int64_t kWidth = 128;
constexpr double kScale = 1 << 14;

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

std::vector<std::pair<std::string, ParallelizePlan>> plans() {
  return {
      {"pairs",
       {{"0", ColwiseParallel{}},
        {"2", RowwiseParallel{}},
        {"4", ColwiseParallel{.output_layouts = Replicate{}}}}},
      {"sequence",
       {{"0", ColwiseParallel{}},
        {"2", RowwiseParallel{.output_layouts = Shard{0}}},
        {"4",
         ColwiseParallel{
             .input_layouts = Shard{0}, .output_layouts = Replicate{}}}}}};
}

nn::Sequential make_net() {
  nn::Sequential net(
      nn::Linear(kWidth, 2 * kWidth),
      nn::GELU(),
      nn::Linear(2 * kWidth, kWidth),
      nn::GELU(),
      nn::Linear(kWidth, kWidth));
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  // Rows of different magnitude, so that slices have different largest values.
  for (Tensor parameter : net->parameters()) {
    parameter.copy_(normal(parameter.sizes(), seed++) * 0.1);
    parameter.mul_(at::linspace(0.5, 2, parameter.size(0))
                       .view(
                           parameter.dim() == 2 ? at::IntArrayRef({-1, 1})
                                                : at::IntArrayRef({-1})));
    if (parameter.dim() == 2)
      parameter.mul_(at::linspace(2, 0.5, parameter.size(1)));
  }
  return net;
}

struct Training {
  FP8Recipe recipe = AORecipeKwargs();
  ParallelOptions parallel = {};
  int num_steps = 1;
  double learning_rate = 1;
};

Weights train(const Training& run, const WorldOptions& world) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::fp8,
       .fp8_recipe = run.recipe,
       .autocast = {.enabled = false},
       .parallel = run.parallel,
       .world = world});
  nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), run.learning_rate / kScale);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < run.num_steps; ++step) {
    const Tensor x =
        normal({kRows, kWidth}, static_cast<std::uint64_t>(100 + step));
    optimizer.zero_grad();
    accelerator.backward(
        torch::square(model(x) - torch::sin(x)).mean() * kScale);
    optimizer.step();
  }
  const auto full = model.full_parameters();
  Weights weights;
  for (const auto& item : net->named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

Weights train_alone(const Training& run) {
  Weights weights;
  run_on_ranks(
      1, [&](const WorldOptions& world) { weights = train(run, world); });
  return weights;
}

// One step compares gradients; four steps show that scales stay in sync.
TEST(Float8TensorParallel, IsWhatOneProcessComputes) {
  for (const auto& [recipe_name, recipe] :
       testing::float8_recipes_of_all_layers()) {
    for (const int num_steps : {1, 4}) {
      Training run{recipe, {}, num_steps, num_steps == 1 ? 1 : 0.05};
      const Weights expected = train_alone(run);
      for (const auto& [plan_name, plan] : plans()) {
        for (const int num_ranks : {2, 4}) {
          SCOPED_TRACE(
              recipe_name + " " + plan_name + " on " +
              std::to_string(num_ranks) + " after " +
              std::to_string(num_steps));
          run.parallel.tensor = num_ranks;
          run.parallel.parallelize_plan = plan;
          std::mutex mutex;
          run_on_ranks(num_ranks, [&](const WorldOptions& world) {
            const Weights found = train(run, world);
            const std::lock_guard lock(mutex);
            for (const auto& [name, weight] : expected) {
              EXPECT_LE(
                  (found.at(name) - weight).abs().max().item<double>(), 1e-5)
                  << name;
            }
          });
        }
      }
    }
  }
}

TEST(Float8TensorParallel, GoesWithShardsAndRecomputation) {
  for (const auto& [name, recipe] : testing::float8_recipes_of_all_layers()) {
    SCOPED_TRACE(name);
    const Weights expected = train_alone({recipe});
    Training run{recipe};
    run.parallel.tensor = 2;
    run.parallel.parallelize_plan = plans().front().second;
    run.parallel.fully_sharded = FullyShardedDataParallelOptions{
        .mixed_precision_policy = MixedPrecisionPolicy{}};
    run.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
        .min_num_params = 100};
    std::mutex mutex;
    run_on_ranks(4, [&](const WorldOptions& world) {
      // Both shard ranks get the full batch.
      const Weights found = train(run, world);
      const std::lock_guard lock(mutex);
      for (const auto& [weight_name, weight] : expected) {
        EXPECT_LE(
            (found.at(weight_name) - weight).abs().max().item<double>(), 1e-5)
            << weight_name;
      }
    });
  }
}

}  // namespace float8_tensor_parallel_test

}  // namespace accelerate
