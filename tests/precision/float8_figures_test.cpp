// Figures in the journal about casts to float8 and products of float8 matrices.
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "precision/fp8/float8_statistics.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "trackers/journal/journal_tracker.h"

namespace accelerate {

namespace float8_figures_test {

namespace nn = torch::nn;
using at::Tensor;
using detail::Float8Statistics;
using detail::RunHistory;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

using Figures = std::map<std::string, double>;

Figures figures_of(Float8Statistics& statistics) {
  const auto list = Float8Statistics::figures_of("fc", statistics.take());
  return {list.begin(), list.end()};
}

TEST(Float8Statistics, CountWhatACastLoses) {
  Float8Statistics statistics;
  // The smallest e4m3 value is 2^-9. 460 rounds to the largest, 448; 470 would
  // round beyond it.
  const Tensor matrix = torch::tensor(
      {{0.0F, 1e-4F, -460.0F, 470.0F}, {-1e5F, 1.0F, 2.0F, 3.0F}});
  const Tensor one = torch::ones({});
  statistics.add_cast(
      1, matrix, detail::cast_with_scale(matrix, at::kFloat8_e4m3fn, one));
  EXPECT_EQ(
      figures_of(statistics),
      (Figures{
          {"fp8/fc/weight/underflow_rate", 1.0 / 7},
          {"fp8/fc/weight/overflow_rate", 2.0 / 7},
          {"fp8/fc/weight/scale", 1.0}}));
  EXPECT_TRUE(figures_of(statistics).empty());
}

TEST(Float8Statistics, FindNothingCutOffByScalesOfTheValuesThemselves) {
  const Tensor matrix =
      torch::randn({64, 64}, at::detail::createCPUGenerator(3)).mul_(100);
  for (const auto granularity :
       {detail::Float8Granularity::tensorwise,
        detail::Float8Granularity::axiswise,
        detail::Float8Granularity::blocks}) {
    for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      Float8Statistics statistics;
      const detail::DynamicCast how{dtype, granularity};
      const detail::Float8Matrix cast =
          detail::cast_dynamically(matrix, how, 1);
      statistics.add_cast(0, matrix, cast);
      const Figures figures = figures_of(statistics);
      EXPECT_EQ(figures.at("fp8/fc/input/overflow_rate"), 0);
      EXPECT_EQ(
          figures.at("fp8/fc/input/scale"), cast.scale.max().item<double>());
      EXPECT_EQ(
          figures.contains("fp8/fc/input/smallest_scale"),
          granularity != detail::Float8Granularity::tensorwise);
    }
  }
}

TEST(Float8Statistics, CompareProductsWithThoseOfBf16) {
  Float8Statistics statistics;
  const Tensor a = torch::full({2, 4}, 2.0F), b = torch::full({4, 3}, 0.5F);
  const Tensor product = at::mm(a, b);
  statistics.add_product(0, product * 1.25, a, b);
  statistics.add_product(2, product, a, b);
  statistics.add_product(2, product * 2, a, b);
  EXPECT_EQ(
      figures_of(statistics),
      (Figures{
          {"fp8/fc/forward/relative_error", 0.25},
          {"fp8/fc/grad_weight/relative_error", std::sqrt(0.5)}}));
}

TEST(Float8Statistics, SayNothingOfEmptyMatrices) {
  Float8Statistics statistics;
  const Tensor empty = torch::empty({0, 16});
  statistics.add_cast(0, empty, detail::cast_dynamically(empty, {}, 1));
  statistics.add_product(0, empty, empty, torch::ones({16, 16}));
  EXPECT_TRUE(figures_of(statistics).empty());
}

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

nn::Sequential make_net() {
  nn::Sequential net(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16));
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (Tensor parameter : net->parameters())
    parameter.copy_(normal(parameter.sizes(), seed++) * 0.15);
  return net;
}

struct Training {
  FP8Recipe recipe = TERecipeKwargs{.use_mxfp8_block_scaling = true};
  std::int64_t interval = 2;
  int num_ranks = 1;
  ParallelOptions parallel = {};
  double loss_scale = 1;
};

// Trains 4 steps of two micro-batches, divided among ranks, and reads the
// journal.
std::map<std::string, std::vector<RunHistory::Point>> train(
    const Training& training) {
  const TemporaryDirectory directory;
  run_on_ranks(training.num_ranks, [&](const WorldOptions& world) {
    const int window = 2 / training.num_ranks;
    Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = training.recipe,
         .fp8_statistics_interval = training.interval,
         .autocast = {.enabled = false},
         .gradient_accumulation_steps = window,
         .parallel = training.parallel,
         .project_dir = directory.path().string(),
         .run_name = "r",
         .world = world});
    nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 1; step <= 4; ++step) {
      accelerator.log({{"loss", 1.0}}, step);
      const Tensor batch = normal({64, 16}, static_cast<std::uint64_t>(step));
      for (int i = 0; i < window; ++i) {
        const auto micro_step = accelerator.accumulate(model);
        const Tensor x = batch.narrow(
            0, 32 * (accelerator.process_index() * window + i), 32);
        optimizer.zero_grad();
        accelerator.backward(
            torch::square(model(x) - torch::sin(x)).mean() *
            training.loss_scale);
        optimizer.step();
      }
      const torch::NoGradGuard no_grad;
      // Not measured, since training does not use it.
      static_cast<void>(model(batch * 1e3));
    }
    accelerator.end_training();
  });
  RunHistory history;
  history.add(
      detail::JournalReader(detail::journal_path(directory.path() / "r"))
          .read());
  std::map<std::string, std::vector<RunHistory::Point>> found;
  for (const auto& [name, points] : history.series())
    if (name.starts_with("fp8/")) found.emplace(name, points);
  return found;
}

TEST(Float8Figures, AreInTheJournalAtEachInterval) {
  const auto found = train({});
  std::vector<std::string> names;
  for (const auto& [name, points] : found) {
    names.push_back(name);
    ASSERT_EQ(points.size(), 2U) << name;
    EXPECT_EQ(points[0].step, 2) << name;
    EXPECT_EQ(points[1].step, 4) << name;
  }
  EXPECT_THAT(
      names,
      ElementsAre(
          "fp8/0/forward/relative_error",
          "fp8/0/grad_output/overflow_rate",
          "fp8/0/grad_output/scale",
          "fp8/0/grad_output/smallest_scale",
          "fp8/0/grad_output/underflow_rate",
          "fp8/0/grad_weight/relative_error",
          "fp8/0/input/overflow_rate",
          "fp8/0/input/scale",
          "fp8/0/input/smallest_scale",
          "fp8/0/input/underflow_rate",
          "fp8/0/weight/overflow_rate",
          "fp8/0/weight/scale",
          "fp8/0/weight/smallest_scale",
          "fp8/0/weight/underflow_rate",
          "fp8/2/forward/relative_error",
          "fp8/2/grad_input/relative_error",
          "fp8/2/grad_output/overflow_rate",
          "fp8/2/grad_output/scale",
          "fp8/2/grad_output/smallest_scale",
          "fp8/2/grad_output/underflow_rate",
          "fp8/2/grad_weight/relative_error",
          "fp8/2/input/overflow_rate",
          "fp8/2/input/scale",
          "fp8/2/input/smallest_scale",
          "fp8/2/input/underflow_rate",
          "fp8/2/weight/overflow_rate",
          "fp8/2/weight/scale",
          "fp8/2/weight/smallest_scale",
          "fp8/2/weight/underflow_rate"));
  for (const auto& point : found.at("fp8/2/forward/relative_error")) {
    // e4m3 has three mantissa bits: errors of up to 1/16 in each factor.
    EXPECT_GT(point.value, 0.01);
    EXPECT_LT(point.value, 0.0625);
  }
}

TEST(Float8Figures, AreThoseOfOneProcessOnTwoRanks) {
  const auto alone = train({});
  for (const bool is_sharded : {false, true}) {
    SCOPED_TRACE(is_sharded ? "sharded" : "replicated");
    Training training{.num_ranks = 2};
    if (is_sharded) training.parallel.shard = 2;
    const auto together = train(training);
    ASSERT_EQ(together.size(), alone.size());
    for (const auto& [name, points] : alone) {
      const auto& others = together.at(name);
      ASSERT_EQ(others.size(), points.size());
      // Micro-steps have half of the gradients that ranks average.
      const bool is_halved = name.find("grad_output") != std::string::npos &&
          name.ends_with("scale");
      // Shards are gathered in bf16, and weights are cast from bf16.
      const double tolerance =
          is_sharded && name.ends_with("relative_error") ? 0.1 : 1e-5;
      for (std::size_t i = 0; i < points.size(); ++i) {
        const double expected = points[i].value * (is_halved ? 0.5 : 1);
        EXPECT_NEAR(others[i].value, expected, tolerance * expected) << name;
      }
    }
  }
}

TEST(Float8Figures, ShowHowADelayedScaleSettles) {
  const auto found = train(
      {.recipe = TERecipeKwargs{.amax_history_len = 4},
       .interval = 1,
       .loss_scale = 1e-3});
  const auto& scales = found.at("fp8/0/weight/scale");
  ASSERT_EQ(scales.size(), 4U);
  EXPECT_EQ(scales[0].value, 1);
  EXPECT_GT(scales[1].value, 100);
  // Gradients underflow with the first scale, but not with the next.
  const auto& lost = found.at("fp8/2/grad_output/underflow_rate");
  EXPECT_GT(lost[0].value, 0.3);
  EXPECT_LT(lost[1].value, 0.1);
}

TEST(Float8Figures, AreNotMeasuredWithoutAnInterval) {
  EXPECT_TRUE(train({.interval = 0}).empty());
}

TEST(Float8Figures, RefuseANegativeInterval) {
  expect_error<ConfigError>(
      [] {
        const Accelerator accelerator(
            {.fp8_statistics_interval = -1, .journal = false});
      },
      "fp8_statistics_interval must be a number of steps");
}

// The stages are on different ranks, and the main process has the journal.
TEST(Float8Figures, ComeFromAllStagesOfAPipeline) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = TERecipeKwargs{.use_mxfp8_block_scaling = true},
         .fp8_statistics_interval = 1,
         .autocast = {.enabled = false},
         .parallel = {.pipeline = 2},
         .project_dir = directory.path().string(),
         .run_name = "r",
         .world = world});
    const Pipeline pipeline(
        accelerator,
        make_net(),
        {.split_points = {"2"}, .num_micro_batches = 2});
    torch::optim::SGD sgd(pipeline.parameters(), 0.05);
    auto optimizer = accelerator.prepare(sgd);
    optimizer.zero_grad();
    const Tensor x = normal({64, 16}, 1);
    static_cast<void>(
        pipeline.step(x, x, [](const Tensor& output, const Tensor& target) {
          return torch::square(output - target).mean();
        }));
    optimizer.step();
    accelerator.end_training();
  });
  RunHistory history;
  history.add(
      detail::JournalReader(detail::journal_path(directory.path() / "r"))
          .read());
  for (const std::string layer : {"0", "2"}) {
    EXPECT_TRUE(
        history.series().contains("fp8/" + layer + "/forward/relative_error"))
        << layer;
  }
}

}  // namespace float8_figures_test

}  // namespace accelerate
