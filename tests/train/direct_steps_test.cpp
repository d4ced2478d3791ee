// After its first step, a program that needs only LibTorch's functions takes a
// shortcut through the handles. These tests make it leave that shortcut.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "train/session/session.h"

namespace accelerate {
namespace direct_steps_test {

using testing::expect_error;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

torch::nn::Linear one_weight() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.zero_();
  return net;
}

// A session whose steps are direct; each step adds 1 to the weight.
struct Direct {
  explicit Direct(AcceleratorOptions options = {})
      : accelerator(with_world(std::move(options))),
        prepared(accelerator.prepare(net, sgd)) {
    step();
  }

  static AcceleratorOptions with_world(AcceleratorOptions options) {
    options.world = alone();
    return options;
  }
  void backward() { accelerator.backward(-model()(at::ones({1, 1})).sum()); }
  void step() {
    const auto micro_step = accelerator.accumulate(model());
    backward();
    optimizer().step();
    optimizer().zero_grad();
  }
  [[nodiscard]] const Model<torch::nn::LinearImpl>& model() const {
    return std::get<0>(prepared);
  }
  [[nodiscard]] const Optimizer& optimizer() const {
    return std::get<1>(prepared);
  }
  [[nodiscard]] bool is_direct() const {
    return optimizer().prepared()->session->step.is_direct;
  }
  [[nodiscard]] double weight() const { return net->weight.item<double>(); }

  torch::nn::Linear net = one_weight();
  torch::optim::SGD sgd{net->parameters(), 1.0};
  Accelerator accelerator;
  std::tuple<Model<torch::nn::LinearImpl>, Optimizer> prepared;
};

TEST(DirectSteps, BeginWithTheSecondStep) {
  Direct direct;
  EXPECT_TRUE(direct.is_direct());
  direct.step();
  direct.step();
  EXPECT_EQ(direct.weight(), 3);
  EXPECT_FALSE(direct.net->weight.grad().defined());
}

TEST(DirectSteps, AreNotTakenWhereSomethingElseIsNeeded) {
  AcceleratorOptions windows;
  windows.gradient_accumulation_steps = 2;
  EXPECT_FALSE(Direct(windows).is_direct());
  AcceleratorOptions masters;
  masters.master_weights = true;
  EXPECT_FALSE(Direct(masters).is_direct());
}

TEST(DirectSteps, EndWhileAProfileListens) {
  Direct direct;
  direct.step();
  auto profile = direct.accelerator.profile(
      {.activities = std::vector<ProfilerActivity>{}});
  EXPECT_FALSE(direct.is_direct());
  for (int i = 0; i < 2; ++i) {
    direct.step();
    profile.step();
    EXPECT_FALSE(direct.is_direct());
  }
  profile.stop();
  const StepTimes times = profile.step_times();
  EXPECT_EQ(times.num_steps, 2);
  EXPECT_GT(times.forward_ns, 0);
  EXPECT_GT(times.backward_ns, 0);
  EXPECT_GT(times.optimizer_ns, 0);
  direct.step();
  EXPECT_TRUE(direct.is_direct());
  EXPECT_EQ(direct.weight(), 5);
}

TEST(DirectSteps, EndWhenAnotherModelIsPrepared) {
  Direct direct;
  auto other = one_weight();
  const auto model = direct.accelerator.prepare(other);
  EXPECT_FALSE(direct.is_direct());
  direct.step();
  EXPECT_TRUE(direct.is_direct());
  EXPECT_EQ(direct.weight(), 2);
}

TEST(DirectSteps, EndWhenWindowsGetLonger) {
  Direct direct;
  direct.accelerator.gradient_state().set_num_steps(2);
  direct.step();
  EXPECT_EQ(direct.weight(), 1);
  direct.step();
  EXPECT_EQ(direct.weight(), 2);
}

// Within a window, zero_grad() keeps gradients, including those of a direct
// backward.
TEST(DirectSteps, KeepGradientsThatNoStepHasUsed) {
  Direct direct;
  direct.backward();
  direct.accelerator.gradient_state().set_num_steps(2);
  direct.optimizer().zero_grad();
  EXPECT_EQ(direct.net->weight.grad().item<double>(), -1);
}

TEST(DirectSteps, DropGradientsThatAStepHasUsed) {
  Direct direct;
  direct.backward();
  direct.optimizer().step();
  direct.accelerator.gradient_state().set_num_steps(2);
  direct.optimizer().zero_grad();
  EXPECT_FALSE(direct.net->weight.grad().defined());
}

TEST(DirectSteps, WaitWhileGradientsAreNotToBeUsed) {
  Direct direct;
  direct.accelerator.gradient_state().set_sync_gradients(false);
  direct.backward();
  direct.optimizer().step();
  EXPECT_EQ(direct.weight(), 1);
}

TEST(DirectSteps, EndWithTheRelease) {
  Direct direct;
  direct.accelerator.free_memory();
  expect_error<ConfigError>(
      [&] { (void)direct.accelerator.accumulate(direct.model()); },
      "free_memory");
  expect_error<ConfigError>(
      [&] { direct.model()(at::ones({1, 1})); }, "free_memory");
  expect_error<ConfigError>([&] { direct.optimizer().step(); }, "free_memory");
}

TEST(DirectSteps, StillRefuseALossThatCannotBe) {
  const Direct direct;
  expect_error<ConfigError>(
      [&] { direct.accelerator.backward(at::Tensor()); },
      "the loss of backward() must be defined");
  expect_error<ConfigError>(
      [&] { direct.accelerator.backward(at::ones({})); }, "must have a graph");
  expect_error<ConfigError>(
      [&] { direct.accelerator.backward(direct.model()(at::ones({2, 1}))); },
      "but has 2");
}

TEST(DirectSteps, TakeTheOptionsOfABackward) {
  const Direct direct;
  const at::Tensor out = direct.model()(at::ones({2, 1}));
  direct.accelerator.backward(
      out, {.retain_graph = true, .gradient = at::full({2, 1}, 3.)});
  EXPECT_EQ(direct.net->weight.grad().item<double>(), 6);
  direct.accelerator.backward(out.sum());
  EXPECT_EQ(direct.net->weight.grad().item<double>(), 8);
}

TEST(DirectSteps, EvaluateClosures) {
  Direct direct;
  const at::Tensor loss = direct.optimizer().step([&] {
    direct.optimizer().zero_grad();
    const at::Tensor result = -direct.model()(at::ones({1, 1})).sum();
    direct.accelerator.backward(result);
    return result;
  });
  EXPECT_EQ(loss.item<double>(), -1);
  EXPECT_EQ(direct.weight(), 2);
}

TEST(DirectSteps, NoticeADestroyedOptimizer) {
  auto net = one_weight();
  auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 1.0);
  const Accelerator accelerator(Direct::with_world({}));
  const Optimizer optimizer = accelerator.prepare(*sgd);
  accelerator.backward(net(at::ones({1, 1})).sum());
  optimizer.step();
  sgd.reset();
  expect_error<ConfigError>([&] { optimizer.step(); }, "destroyed");
  expect_error<ConfigError>([&] { optimizer.zero_grad(); }, "destroyed");
}

}  // namespace direct_steps_test
}  // namespace accelerate
