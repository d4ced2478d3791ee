// Captured steps on the CPU, where they run plainly: with the same results as a
// loop without them, and a reason that says so.
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>

#include "capture/pretend_graph.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "train/session/session.h"

namespace accelerate {
namespace plain_capture_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

// 200 micro-steps of a small net; returns its losses and its weights.
std::vector<Tensor> train(AcceleratorOptions options, bool captures) {
  torch::manual_seed(1);
  options.world = alone();
  const Accelerator accelerator(options);
  torch::nn::Sequential net(
      torch::nn::Linear(4, 8),
      torch::nn::Dropout(0.25),
      torch::nn::Linear(8, 2));
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  torch::optim::StepLR step_lr(adamw, 10, 0.9);
  auto [model, optimizer, schedule] = accelerator.prepare(net, adamw, step_lr);
  const auto take =
      [&, &model = model, &optimizer = optimizer, &schedule = schedule](
          const Tensor& x, const Tensor& y) {
        const auto micro_step = accelerator.accumulate(model);
        const Tensor loss = (model(x) - y).square().mean();
        accelerator.backward(loss);
        if (accelerator.sync_gradients())
          static_cast<void>(accelerator.clip_grad_norm_(model, 0.5));
        optimizer.step();
        schedule.step();
        optimizer.zero_grad();
        return loss;
      };
  const auto step = accelerator.capture(take);
  std::vector<Tensor> found;
  for (int i = 0; i < 200; ++i) {
    const Tensor x = torch::randn({5, 4}), y = torch::randn({5, 2});
    found.push_back((captures ? step(x, y) : take(x, y)).detach());
  }
  if (captures) {
    EXPECT_FALSE(step.captured());
    EXPECT_EQ(step.reason(), "LibTorch has no graphs for the device cpu");
    EXPECT_EQ(step.counts().plain, 200);
    EXPECT_EQ(step.counts().recorded, 0);
  }
  for (const Tensor& weight : net->parameters())
    found.push_back(weight.detach());
  return found;
}

TEST(PlainCapture, TrainsExactlyAsALoopWithoutIt) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    for (const int window : {1, 4}) {
      const AcceleratorOptions options{
          .mixed_precision = precision, .gradient_accumulation_steps = window};
      const auto captured = train(options, true), plain = train(options, false);
      ASSERT_EQ(captured.size(), plain.size());
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(captured[i].equal(plain[i])) << i;
    }
  }
}

TEST(PlainCapture, ReturnsWhatTheFunctionReturnsWithoutAGraph) {
  const Accelerator accelerator({.world = alone()});
  const Tensor weight = torch::ones({2}, torch::requires_grad());
  const auto one = accelerator.capture(
      [&](Tensor x) { return std::pair(x * weight, std::vector{x}); });
  const auto [product, list] = one(torch::full({2}, 3.));
  EXPECT_FALSE(product.requires_grad());
  EXPECT_TRUE(product.equal(torch::full({2}, 3.)));
  EXPECT_EQ(list.size(), 1);

  int num_calls = 0;
  const auto nothing = accelerator.capture([&] { ++num_calls; });
  static_assert(std::is_void_v<decltype(nothing())>);
  nothing();
  nothing();
  EXPECT_EQ(num_calls, 2);

  const CapturedStep<Tensor(const Tensor&, int)> named = accelerator.capture(
      [](const Tensor& x, int factor) { return x * factor; },
      {.clone_outputs = true});
  EXPECT_EQ(named(torch::ones({}), 5).item<int>(), 5);
}

TEST(PlainCapture, IsRefusedWithOptionsOutOfRange) {
  const Accelerator accelerator({.world = alone()});
  const auto capture = [&](const CaptureOptions& options) {
    static_cast<void>(accelerator.capture([] {}, options));
  };
  expect_error<ConfigError>(
      [&] { capture({.warmup_steps = 0}); },
      "must be at least 1, but are 0 and");
  expect_error<ConfigError>([&] { capture({.max_graphs = 0}); }, "and 0");
}

TEST(PlainCapture, SaysWhyBeforeItIsCalled) {
  const Accelerator accelerator({.world = alone()});
  const auto step = accelerator.capture([] {});
  EXPECT_FALSE(step.captured());
  EXPECT_EQ(step.reason(), "it was not called yet");
  step.reset();
}

TEST(PlainCapture, IsAllThereIsForSeveralRanks) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Linear net(2, 1);
    torch::optim::SGD sgd(net->parameters(), 0.125);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    optimizer.prepared()->session->capture.make_graph = testing::pretend_graphs(
        std::make_shared<testing::PretendGraphCounts>());
    const auto step = accelerator.capture(
        [&, &model = model, &optimizer = optimizer](const Tensor& x) {
          accelerator.backward(model(x).sum());
          optimizer.step();
          optimizer.zero_grad();
        });
    for (int i = 0; i < 6; ++i) step(torch::ones({1, 2}));
    EXPECT_EQ(
        step.reason(),
        "several ranks exchange gradients, which graphs do not contain");
    EXPECT_EQ(step.counts().plain, 6);
  });
}

}  // namespace plain_capture_test
}  // namespace accelerate
