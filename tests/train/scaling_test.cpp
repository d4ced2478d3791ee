#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace scaling_test {

using testing::expect_error;
using testing::run_on_ranks;

AcceleratorOptions fp16(const WorldOptions& world, double init_scale = 8) {
  return {
      .mixed_precision = Precision::fp16,
      .autocast = {.enabled = false},
      .grad_scaler = {.init_scale = init_scale, .growth_interval = 3},
      .world = world};
}

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

torch::nn::Linear one_weight() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.zero_();
  return net;
}

TEST(Scaling, StepsWithTheTrueGradientWhetherClippedOrNot) {
  for (const bool clips : {false, true}) {
    Accelerator accelerator(fp16(alone()));
    auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::full({1, 1}, 4.)).sum());
    EXPECT_DOUBLE_EQ(net->weight.grad().item<double>(), 32);
    if (clips) {
      EXPECT_DOUBLE_EQ(
          accelerator.clip_grad_norm_(model, 100).item<double>(), 4);
      accelerator.clip_grad_value_(model, 100);
    }
    optimizer.step();
    EXPECT_DOUBLE_EQ(net->weight.item<double>(), -4);
  }
}

TEST(Scaling, SkipsAnInfiniteStepOnEveryRankAndLowersTheScale) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator(fp16(world));
    // The model is not prepared, so that gradients differ per rank and only the
    // scaler's agreement keeps the ranks in step.
    auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto optimizer = accelerator.prepare(sgd);
    const double x = accelerator.process_index() == 1 ? INFINITY : 1;
    accelerator.backward(net(torch::full({1, 1}, x)).sum());
    optimizer.step();
    EXPECT_TRUE(optimizer.step_was_skipped());
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
    EXPECT_EQ(net->weight.item<double>(), 0);
    EXPECT_EQ(accelerator.gradient_state().scaler()->get_scale(), 4);
    optimizer.zero_grad();
    accelerator.backward(net(torch::ones({1, 1})).sum());
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    EXPECT_EQ(net->weight.item<double>(), -1);
  });
}

TEST(Scaling, AdaptsTheScaleOnceForSeveralOptimizers) {
  Accelerator accelerator(fp16(alone()));
  auto first = one_weight(), second = one_weight();
  torch::optim::SGD sgd_1(first->parameters(), 1.0),
      sgd_2(second->parameters(), 1.0);
  auto [model_1, model_2, optimizer_1, optimizer_2] =
      accelerator.prepare(first, second, sgd_1, sgd_2);
  const auto x = torch::ones({1, 1});
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(
        model_1(x).sum() * (step == 0 ? INFINITY : 1.0) + model_2(x).sum());
    optimizer_1.step();
    // The first step must not change the second one's divisor.
    optimizer_2.step();
    optimizer_1.zero_grad();
    optimizer_2.zero_grad();
    EXPECT_EQ(accelerator.gradient_state().scaler()->get_scale(), 4);
    EXPECT_EQ(optimizer_1.step_was_skipped(), step == 0);
    EXPECT_FALSE(optimizer_2.step_was_skipped());
  }
  EXPECT_EQ(first->weight.item<double>(), -2);
  EXPECT_EQ(second->weight.item<double>(), -3);
}

TEST(Scaling, RescalesWaitingGradientsWhenTheScaleChanges) {
  Accelerator accelerator(fp16(alone()));
  auto first = one_weight(), second = one_weight();
  torch::optim::SGD sgd_1(first->parameters(), 1.0),
      sgd_2(second->parameters(), 1.0);
  auto [model_1, model_2, optimizer_1, optimizer_2] =
      accelerator.prepare(first, second, sgd_1, sgd_2);
  const auto x = torch::ones({1, 1});
  accelerator.backward(model_1(x).sum() * INFINITY + model_2(x).sum());
  optimizer_1.step();
  optimizer_1.zero_grad();
  accelerator.backward(model_1(x).sum() + 2 * model_2(x).sum());
  EXPECT_EQ(accelerator.gradient_state().scaler()->get_scale(), 4);
  EXPECT_EQ(second->weight.grad().item<double>(), 12);
  optimizer_2.step();
  EXPECT_EQ(second->weight.item<double>(), -3);
}

TEST(Scaling, AddsToGradientsThatWereUnscaledWithoutAStep) {
  Accelerator accelerator(fp16(alone()));
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto x = torch::ones({1, 1});
  accelerator.backward(model(x).sum());
  accelerator.unscale_gradients();
  EXPECT_EQ(net->weight.grad().item<double>(), 1);
  accelerator.backward(model(x).sum());
  EXPECT_EQ(net->weight.grad().item<double>(), 16);
  accelerator.unscale_gradients(optimizer);
  optimizer.zero_grad();
  accelerator.backward(model(x).sum() * 3);
  optimizer.step();
  EXPECT_EQ(net->weight.item<double>(), -3);
}

TEST(Scaling, HoldsTheScheduleBackWithTheStep) {
  Accelerator accelerator(fp16(alone()));
  auto net = one_weight(), other = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0),
      sgd_2(other->parameters(), 1.0);
  optim::ExponentialLR halving(sgd, 0.5), halving_2(sgd_2, 0.5);
  auto [model, model_2, optimizer, optimizer_2, scheduler, scheduler_2] =
      accelerator.prepare(net, other, sgd, sgd_2, halving, halving_2);
  const auto x = torch::ones({1, 1});
  accelerator.backward(model(x).sum() * INFINITY + model_2(x).sum());
  optimizer.step();
  optimizer_2.step();
  scheduler.step();
  scheduler_2.step();
  EXPECT_THAT(scheduler.get_last_lr(), ::testing::ElementsAre(1));
  EXPECT_THAT(scheduler_2.get_last_lr(), ::testing::ElementsAre(0.5));
}

TEST(Scaling, ComputesInHalfPrecisionOnTheCpuToo) {
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16, .world = alone()});
  torch::nn::Linear net(4, 4);
  torch::ScalarType inside{};
  auto model = accelerator.prepare(net);
  const auto output = model.call([&](torch::nn::LinearImpl& linear) {
    auto y = linear.forward(torch::ones({2, 4}));
    inside = y.scalar_type();
    const auto off = accelerator.autocast({.enabled = false});
    EXPECT_EQ(linear.forward(torch::ones({2, 4})).scalar_type(), torch::kFloat);
    return y;
  });
  EXPECT_EQ(inside, torch::kHalf);
  EXPECT_EQ(output.scalar_type(), torch::kFloat);
}

TEST(Scaling, RefusesWhatCannotBeScaled) {
  Accelerator accelerator(fp16(alone()));
  torch::nn::Linear net(2, 2);
  net->to(torch::kHalf);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(torch::ones({1, 2}, torch::kHalf)).sum());
  expect_error<ConfigError>(
      [&step = optimizer] { step.step(); }, "master_weights");
  expect_error<ConfigError>(
      [&step = optimizer] { step.step([] { return torch::Tensor(); }); },
      "closure");
  expect_error<ConfigError>(
      [] {
        GradScaler scaler(
            {.init_scale = 0,
             .growth_factor = 1,
             .backoff_factor = 1,
             .growth_interval = 0});
      },
      "growth_interval");
}

}  // namespace scaling_test
}  // namespace accelerate
