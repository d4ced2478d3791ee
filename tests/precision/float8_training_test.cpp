#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "checkpoint/load/destinations.h"
#include "checkpoint/load/source.h"
#include "support/expect_error.h"
#include "support/float8_recipes.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {

namespace float8_training_test {

namespace nn = torch::nn;
using at::Tensor;
using testing::expect_error;
using testing::float8_recipes;
using ::testing::HasSubstr;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

constexpr std::int64_t kBatch = 64;
// Brings gradients into the range of e5m2, since delayed scaling begins with 1.
constexpr double kScale = 1 << 16;

// Uses its own generator, since ranks are threads that share LibTorch's.
Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

nn::Sequential make_net() {
  nn::Sequential net(
      nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 32), nn::Linear(32, 16));
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (Tensor parameter : net->parameters())
    parameter.copy_(normal(parameter.sizes(), seed++) * 0.15);
  return net;
}

struct Training {
  FP8Recipe recipe = AORecipeKwargs();
  ParallelOptions parallel = {};
  Precision precision = Precision::fp8;
  double learning_rate = 0.05;
  int num_parts = 1;
  int first_step = 0;
  int last_step = 5;
  std::string load = {};
  std::string save = {};
};

struct Trained {
  std::vector<Tensor> weights;
  double loss = 0;
};

// Trains in fp32 except for the recipe's casts. Each global batch has
// `num_parts` parts, divided among ranks; a rank's parts are its micro-steps.
// Halves and quarters of gradients are exact, so any number of ranks gives the
// same bits.
Trained train(const Training& training, const WorldOptions& world) {
  const int num_ranks = world.size.value_or(1);
  const int window = training.num_parts / num_ranks;
  const Accelerator accelerator(
      {.mixed_precision = training.precision,
       .fp8_recipe = training.precision == Precision::fp8
           ? std::optional(training.recipe)
           : std::nullopt,
       .autocast = {.enabled = false},
       .gradient_accumulation_steps = window,
       .parallel = training.parallel,
       .world = world});
  nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), training.learning_rate / kScale);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  if (!training.load.empty()) accelerator.load_state(training.load);
  Trained trained;
  const std::int64_t part = kBatch / training.num_parts;
  for (int step = training.first_step; step < training.last_step; ++step) {
    const Tensor batch =
        normal({kBatch, 16}, static_cast<std::uint64_t>(100 + step));
    for (int i = 0; i < window; ++i) {
      const auto micro_step = accelerator.accumulate(model);
      const Tensor x = batch.narrow(
          0, part * (accelerator.process_index() * window + i), part);
      optimizer.zero_grad();
      const Tensor loss = torch::square(model(x) - torch::sin(x)).mean();
      trained.loss = loss.item<double>();
      accelerator.backward(loss * kScale);
      optimizer.step();
    }
  }
  if (!training.save.empty()) accelerator.save_state(training.save);
  const auto full = model.full_parameters();
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : net->parameters())
    trained.weights.push_back(parameter.detach().clone());
  return trained;
}

Trained train_alone(const Training& training) {
  Trained trained;
  run_on_ranks(
      1, [&](const WorldOptions& world) { trained = train(training, world); });
  return trained;
}

void expect_equal(
    const Trained& found,
    const Trained& expected,
    const std::string& label) {
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (std::size_t i = 0; i < found.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(found.weights[i], expected.weights[i]))
        << label << ": weight " << i << " differs by "
        << (found.weights[i] - expected.weights[i]).abs().max().item<double>();
  }
}

TEST(Float8Training, LearnsByEachRecipe) {
  const Trained expected = train_alone(
      {.precision = Precision::no, .learning_rate = 0.5, .last_step = 40});
  const Trained start =
      train_alone({.precision = Precision::no, .last_step = 1});
  for (const auto& [name, recipe] : float8_recipes()) {
    SCOPED_TRACE(name);
    const Trained found =
        train_alone({.recipe = recipe, .learning_rate = 0.5, .last_step = 40});
    EXPECT_LT(found.loss, start.loss * 0.7);
    EXPECT_NEAR(found.loss, expected.loss, 0.05 * expected.loss);
    bool differs = false;
    for (std::size_t i = 0; i < found.weights.size(); ++i)
      differs |= !at::equal(found.weights[i], expected.weights[i]);
    EXPECT_TRUE(differs);
  }
}

// Each rank scales by its own part; ranks agree only on delayed scales.
TEST(Float8Training, IsTheSameOnSeveralRanks) {
  for (const auto& [name, recipe] : float8_recipes()) {
    for (const int num_ranks : {2, 4}) {
      const std::string label = name + " on " + std::to_string(num_ranks);
      Training training{.recipe = recipe, .num_parts = num_ranks};
      const Trained expected = train_alone(training);
      for (const bool is_sharded : {false, true}) {
        if (is_sharded) {
          training.parallel.fully_sharded = FullyShardedDataParallelOptions{
              .mixed_precision_policy = MixedPrecisionPolicy{}};
        }
        run_on_ranks(num_ranks, [&](const WorldOptions& world) {
          expect_equal(
              train(training, world),
              expected,
              label + (is_sharded ? " sharded" : " replicated"));
        });
      }
    }
  }
}

TEST(Float8Training, RecomputesActivations) {
  for (const auto& [name, recipe] : float8_recipes()) {
    const Trained expected = train_alone({.recipe = recipe});
    const Trained found = train_alone(
        {.recipe = recipe,
         .parallel = {
             .activation_checkpointing = ActivationCheckpointingOptions{
                 .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
                 .min_num_params = 100}}});
    expect_equal(found, expected, name);
  }
}

TEST(Float8Training, GoesOnFromACheckpointWithItsScales) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "state";
  const TERecipeKwargs recipe{
      .amax_history_len = 4, .amax_compute_algo = "max"};
  const Trained expected = train_alone({.recipe = recipe, .last_step = 8});
  train_alone({.recipe = recipe, .last_step = 4, .save = path});
  const Trained found = train_alone(
      {.recipe = recipe, .first_step = 4, .last_step = 8, .load = path});
  expect_equal(found, expected, "resumed");
}

// The tensors of strategies in a checkpoint.
std::map<std::string, Tensor> scales_in(const std::string& path) {
  const auto source = detail::open_checkpoint(path, 0, /*verify=*/true);
  std::map<std::string, Tensor> found;
  std::vector<detail::Destination> destinations;
  for (const auto& [name, stored] : source.sections.at("strategies")) {
    const std::vector<std::int64_t> shape(
        stored.shape.begin(), stored.shape.end());
    const Tensor made = at::zeros(shape, at::kDouble);
    destinations.push_back({name, made, detail::Layout::unsharded(shape)});
    found.emplace(name, made);
  }
  detail::read_into(source.sections.at("strategies"), destinations);
  return found;
}

TEST(Float8Training, KeepsItsScalesOnAnotherNumberOfRanks) {
  const TERecipeKwargs recipe{
      .amax_history_len = 4, .amax_compute_algo = "max"};
  for (const auto& [before, after] :
       {std::pair(2, 4), std::pair(4, 1), std::pair(1, 2)}) {
    for (const bool is_sharded : {false, true}) {
      SCOPED_TRACE(std::to_string(before) + " to " + std::to_string(after));
      const TemporaryDirectory directory;
      Training training{.recipe = recipe, .num_parts = 4, .last_step = 3};
      if (is_sharded) {
        training.parallel.fully_sharded = FullyShardedDataParallelOptions{
            .mixed_precision_policy = MixedPrecisionPolicy{}};
      }
      training.save = directory.path() / "first";
      run_on_ranks(
          before, [&](const WorldOptions& world) { train(training, world); });
      Training again = training;
      again.first_step = again.last_step;
      again.load = training.save;
      again.save = directory.path() / "second";
      run_on_ranks(
          after, [&](const WorldOptions& world) { train(again, world); });
      const auto saved = scales_in(training.save);
      const auto kept = scales_in(again.save);
      // Three tensors for each of three float8 layers.
      ASSERT_EQ(saved.size(), 9);
      EXPECT_EQ(kept.size(), 9);
      EXPECT_EQ(
          saved.at("float8/2/amax_history").sizes(), at::IntArrayRef({3, 4}));
      EXPECT_EQ(saved.at("float8/2/num_updates").item<double>(), 3);
      EXPECT_NE(saved.at("float8/2/scale")[1].item<double>(), 1);
      for (const auto& [name, tensor] : saved)
        EXPECT_TRUE(at::equal(kept.at(name), tensor)) << name;
    }
  }
}

// With a scale of 1, inputs of 1000 saturate at 448.
TEST(Float8Training, TakesNewScalesFromLomosBackwards) {
  torch::manual_seed(4);
  run_on_ranks(1, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = TERecipeKwargs{},
         .autocast = {.enabled = false},
         .world = world});
    nn::Linear net(nn::LinearOptions(16, 16).bias(false));
    const Tensor x = at::full({4, 16}, 1000.F);
    const Tensor expected = net(x).detach();
    optim::Lomo lomo(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, lomo);
    const Tensor first = model(x);
    accelerator.lomo_backward(first.sum(), 0);
    const Tensor second = model(x).detach();
    EXPECT_FALSE(at::allclose(first.detach(), expected, 0.1, 1));
    EXPECT_TRUE(at::allclose(second, expected, 0.05, 30)) << second << expected;
  });
}

TEST(Float8Training, TakesNoScalesFromEvaluations) {
  const auto train_with = [](bool evaluates) {
    Tensor weight;
    run_on_ranks(1, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8,
           .fp8_recipe =
               TERecipeKwargs{
                   .use_autocast_during_eval = true,
                   .amax_history_len = 4,
                   .amax_compute_algo = "max"},
           .autocast = {.enabled = false},
           .world = world});
      nn::Sequential net = make_net();
      torch::optim::SGD sgd(net->parameters(), 0.05);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (std::uint64_t step = 0; step < 3; ++step) {
        if (evaluates) {
          net->eval();
          // Larger than all values in training.
          const Tensor x = normal({4, 16}, 7) * 100;
          static_cast<void>(model(x));
          const torch::NoGradGuard no_grad;
          static_cast<void>(model(x));
          net->train();
        }
        optimizer.zero_grad();
        accelerator.backward(model(normal({8, 16}, step)).square().mean());
        optimizer.step();
      }
      weight = net->parameters()[0].detach().clone();
    });
    return weight;
  };
  EXPECT_TRUE(at::equal(train_with(true), train_with(false)));
}

TEST(Float8Training, LeavesThePlainModelBehind) {
  run_on_ranks(1, [](const WorldOptions& world) {
    nn::Sequential net = make_net();
    const Tensor x = torch::randn({4, 16});
    const Tensor expected = net->forward(x);
    {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8, .world = world});
      auto model = accelerator.prepare(net);
      EXPECT_FALSE(at::equal(model(x), expected));
    }
    EXPECT_TRUE(at::equal(net->forward(x), expected));
  });
}

TEST(Float8Training, EvaluatesInHighPrecisionUnlessTold) {
  run_on_ranks(1, [](const WorldOptions& world) {
    for (const bool in_float8 : {false, true}) {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8,
           .fp8_recipe = TERecipeKwargs{.use_autocast_during_eval = in_float8},
           .autocast = {.enabled = false},
           .world = world});
      nn::Sequential net = make_net();
      const Tensor x = torch::randn({4, 16});
      const Tensor expected = net->forward(x);
      auto model = accelerator.prepare(net);
      EXPECT_FALSE(at::equal(model(x), expected));
      net->eval();
      EXPECT_EQ(at::equal(model(x), expected), !in_float8);
    }
  });
}

TEST(Float8Layers, AreListedWithReasons) {
  nn::Sequential net(
      nn::Linear(16, 16),
      nn::Linear(16, 24),
      nn::Linear(24, 32),
      nn::Linear(32, 32),
      nn::Linear(32, 16));
  EXPECT_EQ(
      explain_float8_layers(choose_float8_layers(*net)),
      "0: not float8 (the first linear layer)\n"
      "1: not float8 (out_features 24 is not a multiple of 16)\n"
      "2: not float8 (in_features 24 is not a multiple of 16)\n"
      "3: float8\n"
      "4: not float8 (the last linear layer)\n");
  EXPECT_EQ(
      explain_float8_layers(choose_float8_layers(*net, TERecipeKwargs())),
      "0: float8\n"
      "1: not float8 (out_features 24 is not a multiple of 16)\n"
      "2: not float8 (in_features 24 is not a multiple of 16)\n"
      "3: float8\n"
      "4: float8\n");
  const AORecipeKwargs filtered{
      .module_filter_func = [](const std::string& name, const nn::Module&) {
        return name == "1";
      }};
  EXPECT_EQ(
      explain_float8_layers(choose_float8_layers(*net, filtered)),
      "0: not float8 (module_filter_func left it out)\n"
      "1: float8\n"
      "2: not float8 (module_filter_func left it out)\n"
      "3: not float8 (module_filter_func left it out)\n"
      "4: not float8 (module_filter_func left it out)\n");
  EXPECT_EQ(
      explain_float8_layers(choose_float8_layers(*nn::Linear(3, 3))),
      "(the model itself): not float8 (the first linear layer)\n");
}

TEST(Float8Layers, ComeFromRecipesThatAreKnown) {
  expect_error<ConfigError>(
      [] { Float8LinearConfig::from_recipe_name("blockwise"); },
      "but is \"blockwise\"");
}

TEST(Float8Training, NamesALayerWhoseScaleDoesNotFit) {
  struct Setup {
    double size_of_inputs;
    double size_of_losses;
    std::string expected;
  };
  // With this interval, all scales stay 1.
  const TERecipeKwargs recipe{.interval = 1000};
  const std::vector<Setup> setups{
      {1e5,
       kScale,
       "layer \"0\": for 10 steps the delayed fp8 scale of its input has not "
       "fitted: the largest value "},
      {1,
       1e-9,
       "layer \"3\": for 10 steps the delayed fp8 scale of its gradient of the "
       "output has not fitted: the largest value "},
      {1,
       std::numeric_limits<double>::infinity(),
       "values are infinite or NaN, and the scale stays as it was"},
      {1, kScale, ""}};
  for (const Setup& setup : setups) {
    SCOPED_TRACE(setup.expected);
    std::vector<std::string> warnings;
    run_on_ranks(1, [&](const WorldOptions& options) {
      WorldOptions world = options;
      world.logger = Logger(
          [&](const LogRecord& record) {
            warnings.emplace_back(record.message);
          },
          LogLevel::warning);
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp8,
           .fp8_recipe = recipe,
           .autocast = {.enabled = false},
           .world = world});
      nn::Sequential net = make_net();
      torch::optim::SGD sgd(net->parameters(), 0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (std::uint64_t step = 0; step < 20; ++step) {
        optimizer.zero_grad();
        const Tensor x = normal({8, 16}, step) * setup.size_of_inputs;
        accelerator.backward(model(x).mean() * setup.size_of_losses);
        optimizer.step();
      }
    });
    if (setup.expected.empty()) {
      EXPECT_THAT(warnings, ::testing::IsEmpty());
    } else {
      EXPECT_THAT(warnings, ::testing::Contains(HasSubstr(setup.expected)));
    }
  }
}

}  // namespace float8_training_test

}  // namespace accelerate
