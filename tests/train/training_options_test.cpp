// What the options of a training step change.
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/local_sgd.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace training_options_test {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

torch::nn::Linear one_weight() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::zeros_(net->weight);
  return net;
}

torch::Tensor input(double value) {
  return torch::full({1, 1}, value, torch::kFloat);
}

// Returns the scales before and after steps with these gradients.
std::vector<double> scales(
    const GradScalerOptions& options,
    const std::vector<double>& gradients) {
  const GradScaler scaler(options);
  const torch::Tensor weight = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  std::vector<double> found{scaler.get_scale()};
  for (const double gradient : gradients) {
    sgd.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
    scaler.step(sgd);
    scaler.update();
    found.push_back(scaler.get_scale());
  }
  return found;
}

TEST(TrainingOptions, SayWhichSignalsEndTheRun) {
  const Accelerator accelerator(
      {.preemption_signals = {SIGUSR1, SIGUSR2}, .world = alone()});
  EXPECT_FALSE(accelerator.check_preemption());
  std::raise(SIGUSR2);
  EXPECT_TRUE(accelerator.check_preemption());
  // The signal arrives once, and the answer stays true.
  EXPECT_TRUE(accelerator.check_preemption());
}

TEST(TrainingOptions, RefuseSignalsThatCannotBeHandled) {
  expect_error<ConfigError>(
      [] { Accelerator({.preemption_signals = {SIGKILL}, .world = alone()}); },
      "signal 9 cannot be handled; use another one");
}

TEST(GradScalerOptions, DecideHowTheScaleMoves) {
  const std::vector<double> good{1, 1}, bad{INFINITY, 1};
  const GradScalerOptions base{.init_scale = 8, .growth_interval = 1};
  GradScalerOptions options = base;
  EXPECT_THAT(scales(options, good), ElementsAre(8, 16, 32));
  EXPECT_THAT(scales(options, bad), ElementsAre(8, 4, 8));
  options.growth_factor = 3;
  EXPECT_THAT(scales(options, good), ElementsAre(8, 24, 72));
  options = base;
  options.backoff_factor = 0.25;
  EXPECT_THAT(scales(options, bad), ElementsAre(8, 2, 4));
  options = base;
  options.growth_interval = 2;
  EXPECT_THAT(scales(options, good), ElementsAre(8, 8, 16));
  options = base;
  options.enabled = false;
  EXPECT_THAT(scales(options, good), ElementsAre(1, 1, 1));
}

// Returns a rank's weights after each of four steps along its own gradient, 1
// or 3.
std::vector<double> weights_by_step(
    int rank,
    const LocalSGDOptions& options,
    bool finishes = false) {
  std::vector<double> weights;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    LocalSGD local(accelerator, model, options);
    std::vector<double> own;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      accelerator.backward(
          model(input(accelerator.is_main_process() ? 1 : 3)).sum());
      optimizer.step();
      local.step();
      own.push_back(net->weight.item<double>());
    }
    if (finishes) {
      local.finish();
      own.push_back(net->weight.item<double>());
    }
    if (accelerator.process_index() == rank) weights = own;
  });
  return weights;
}

TEST(LocalSGDOptions, DecideWhenWeightsAreAveraged) {
  EXPECT_THAT(
      weights_by_step(0, {.local_sgd_steps = 1}), ElementsAre(-2, -4, -6, -8));
  EXPECT_THAT(
      weights_by_step(0, {.local_sgd_steps = 2}), ElementsAre(-1, -4, -5, -8));
  EXPECT_THAT(
      weights_by_step(1, {.local_sgd_steps = 2}), ElementsAre(-3, -4, -7, -8));
  EXPECT_THAT(
      weights_by_step(1, {.local_sgd_steps = 9}, /*finishes=*/true),
      ElementsAre(-3, -6, -9, -12, -8));
  EXPECT_THAT(
      weights_by_step(1, {.local_sgd_steps = 9, .enabled = false}),
      ElementsAre(-2, -4, -6, -8));
}

TEST(BackwardOptions, KeepTheGraphOrRecordTheBackward) {
  const Accelerator accelerator({.world = alone()});
  auto net = one_weight();
  const auto model = accelerator.prepare(net);
  const auto loss = [&] { return (model(input(2)) + 3).square().sum(); };
  const torch::Tensor kept = loss();
  accelerator.backward(kept, {.retain_graph = true});
  accelerator.backward(kept);
  // 2 (2 w + 3) 2, twice.
  EXPECT_EQ(net->weight.grad().item<double>(), 24);
  EXPECT_THROW(accelerator.backward(kept), c10::Error);
  for (const bool records : {false, true}) {
    net->weight.mutable_grad().reset();
    accelerator.backward(loss(), {.create_graph = records});
    const torch::Tensor gradient = net->weight.grad();
    EXPECT_EQ(gradient.requires_grad(), records);
    if (!records) continue;
    EXPECT_EQ(
        torch::autograd::grad({gradient.sum()}, {net->weight})[0]
            .item<double>(),
        8);
  }
}

// Returns whether low-precision copies are kept in a forward, in an autocast
// scope of the accelerator, and in a scope with its own options.
std::vector<bool> caches(const AutocastOptions& options) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::bf16,
       .autocast = options,
       .world = alone()});
  auto net = one_weight();
  auto model = accelerator.prepare(net);
  std::vector<bool> found;
  const auto look = [&] {
    found.push_back(at::autocast::is_autocast_cache_enabled());
  };
  static_cast<void>(model.call([&](torch::nn::LinearImpl& linear) {
    look();
    return linear.forward(input(1));
  }));
  {
    const auto scope = accelerator.autocast();
    look();
  }
  const auto scope = accelerator.autocast({.cache_enabled = false});
  look();
  return found;
}

TEST(AutocastOptions, DecideWhetherCopiesOfWeightsAreKept) {
  EXPECT_THAT(caches({}), ElementsAre(true, true, false));
  EXPECT_THAT(
      caches({.cache_enabled = false}), ElementsAre(false, false, false));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(AutocastOptions, DecideWhetherForwardsAreLowered) {
  for (const bool enabled : {true, false}) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::bf16,
         .autocast = {.enabled = enabled},
         .world = alone()});
    auto net = one_weight();
    auto model = accelerator.prepare(net);
    at::ScalarType inside{};
    static_cast<void>(model.call([&](torch::nn::LinearImpl& linear) {
      const auto output = linear.forward(input(1));
      inside = output.scalar_type();
      return output;
    }));
    EXPECT_EQ(inside, enabled ? at::kBFloat16 : at::kFloat);
  }
}

// 1/1024 is less than half a bf16 step at 1.
TEST(ModelOptions, GiveOneOfTwoModelsMasterWeights) {
  const Accelerator accelerator({.world = alone()});
  auto plain = one_weight(), exact = one_weight();
  std::vector<torch::Tensor> parameters;
  for (auto net : {plain, exact}) {
    torch::nn::init::ones_(net->weight);
    net->to(torch::kBFloat16);
    parameters.push_back(net->weight);
  }
  torch::optim::SGD sgd(parameters, 1.0 / 1024);
  auto [first, second, optimizer] = accelerator.prepare(
      plain, with_options(exact, {.master_weights = true}), sgd);
  const auto x = input(1).to(torch::kBFloat16);
  for (int step = 0; step < 64; ++step) {
    accelerator.backward((first(x) + second(x)).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(plain->weight.item<double>(), 1);
  EXPECT_EQ(exact->weight.item<double>(), 1 - 64.0 / 1024);
}

// The window, and the weight after each of two micro-steps with a gradient of
// 200.
struct Stepped {
  int window = 0;
  std::vector<double> weights = {};

  bool operator==(const Stepped&) const = default;
};

void PrintTo(const Stepped& stepped, std::ostream* out) {
  *out << "window of " << stepped.window << ", "
       << ::testing::PrintToString(stepped.weights);
}

Stepped step_on(const ParallelOptions& parallel) {
  const Accelerator accelerator({.parallel = parallel, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  Stepped found{.window = accelerator.gradient_accumulation_steps()};
  for (int step = 0; step < 2; ++step) {
    const auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(input(200)).sum());
    optimizer.step();
    optimizer.zero_grad();
    found.weights.push_back(std::round(net->weight.item<double>() * 100) / 100);
  }
  return found;
}

TEST(EngineOptions, ClipAndAccumulate) {
  const auto megatron = [](std::optional<double> clipping) {
    return step_on(
        {.megatron_lm = MegatronLMOptions{.gradient_clipping = clipping}});
  };
  EXPECT_EQ(megatron({}), (Stepped{1, {-1, -2}}));
  EXPECT_EQ(megatron(0.5), (Stepped{1, {-0.5, -1}}));
  EXPECT_EQ(megatron(0), (Stepped{1, {-200, -400}}));
  const auto deepspeed = [](const DeepSpeedOptions& options) {
    return step_on({.deepspeed = options});
  };
  EXPECT_EQ(deepspeed({}), (Stepped{1, {-1, -2}}));
  EXPECT_EQ(deepspeed({.gradient_clipping = 0.5}), (Stepped{1, {-0.5, -1}}));
  EXPECT_EQ(deepspeed({.gradient_clipping = 0}), (Stepped{1, {-200, -400}}));
  EXPECT_EQ(
      deepspeed({.gradient_accumulation_steps = 2, .gradient_clipping = 0}),
      (Stepped{2, {0, -200}}));
  EXPECT_EQ(
      deepspeed(
          {.hf_ds_config =
               R"({"zero_optimization": {"stage": 1}, "gradient_clipping": 4,
                   "gradient_accumulation_steps": 2})"}),
      (Stepped{2, {0, -4}}));
}

}  // namespace training_options_test
}  // namespace accelerate
