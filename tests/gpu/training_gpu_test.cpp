// Training on a CUDA device: as on the CPU with every precision and window,
// optimizer steps equal to LibTorch's, losses that overflow, recomputation, and
// running out of memory.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "support/gpu_device.h"

namespace accelerate {
namespace training_gpu_test {

namespace nn = torch::nn;
using torch::Tensor;

using TrainingOnGpu = testing::OnGpu;

nn::Sequential net_with_values() {
  nn::Sequential net(
      nn::Linear(32, 64),
      nn::GELU(),
      nn::LayerNorm(nn::LayerNormOptions({64})),
      nn::Linear(64, 32));
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (Tensor& parameter : net->parameters()) {
    parameter.copy_(
        (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * 0.1)
            .view(parameter.sizes()));
  }
  return net;
}

struct Curve {
  std::vector<double> losses, norms;
  std::vector<Tensor> weights;
};

Curve train(at::Device device, Precision precision, int accumulation) {
  Accelerator accelerator(
      {.mixed_precision = precision,
       .grad_scaler = {.init_scale = 1024},
       .gradient_accumulation_steps = accumulation,
       .world = {.rank = 0, .size = 1, .device = device}});
  EXPECT_EQ(accelerator.device(), device);
  nn::Sequential net = net_with_values();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  const Tensor rows = torch::sin(torch::arange(24 * 32) * 0.37).view({24, 32});
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adamw,
      DataLoader(
          TensorDataset(rows, rows.cos()),
          {.batch_size = 8, .num_workers = 2, .pin_memory = true}));
  Curve curve;
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (auto& [x, y] : loader) {
      EXPECT_EQ(x.device(), device);
      const auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      const Tensor loss = (model(x) - y).square().mean();
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) {
        const auto norm = accelerator.clip_grad_norm_(model.parameters(), 0.05);
        curve.norms.push_back(norm.item<double>());
      }
      optimizer.step();
      curve.losses.push_back(loss.item<double>());
    }
  }
  for (const Tensor& parameter : net->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    curve.weights.push_back(parameter.detach().cpu());
  }
  return curve;
}

TEST_F(TrainingOnGpu, GoesAsOnTheCpu) {
  for (const auto precision :
       {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const int accumulation : {1, 3}) {
      SCOPED_TRACE(
          std::string(name_of(precision)) + ", windows of " +
          std::to_string(accumulation));
      const Curve expected = train(at::kCPU, precision, accumulation);
      const Curve found = train(device_, precision, accumulation);
      const double tolerance = precision == Precision::no ? 1e-3 : 5e-2;
      ASSERT_EQ(found.losses.size(), expected.losses.size());
      EXPECT_LT(expected.losses.back(), 0.8 * expected.losses.front());
      for (std::size_t i = 0; i < found.losses.size(); ++i)
        EXPECT_NEAR(
            found.losses[i], expected.losses[i], tolerance * expected.losses[i])
            << i;
      ASSERT_EQ(found.norms.size(), expected.norms.size());
      EXPECT_EQ(
          static_cast<int>(found.norms.size()) * accumulation,
          static_cast<int>(found.losses.size()));
      EXPECT_NEAR(
          found.norms[0], expected.norms[0], tolerance * expected.norms[0]);
    }
  }
}

TEST_F(TrainingOnGpu, TwoRunsEndWithTheSameBits) {
  const Curve first = train(device_, Precision::bf16, 1);
  const Curve second = train(device_, Precision::bf16, 1);
  EXPECT_EQ(first.losses, second.losses);
  for (std::size_t i = 0; i < first.weights.size(); ++i)
    EXPECT_TRUE(first.weights[i].equal(second.weights[i])) << i;
}

// The weights after steps with the same gradients.
template <class Optimizer, class Options>
std::vector<Tensor> weights_after(const Options& options, at::Device device) {
  std::vector<Tensor> parameters{
      torch::sin(torch::arange(35.0)).view({5, 7}).to(torch::kFloat).to(device),
      torch::cos(torch::arange(12.0))
          .view({3, 4})
          .to(torch::kFloat)
          .to(device)
          .t(),
      torch::empty({0, 3}, torch::device(device)),
      torch::ones({}, torch::device(device))};
  for (Tensor& parameter : parameters) parameter.requires_grad_();
  Optimizer optimizer(parameters, options);
  for (int step = 0; step < 8; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor& at = parameters[i];
      parameters[i].mutable_grad() = torch::sin(
          at.detach() * 3 + static_cast<double>(step) + static_cast<double>(i));
    }
    optimizer.step();
  }
  return parameters;
}

template <class Ours, class Theirs, class Options>
void expect_steps_of(const Options& options, at::Device device) {
  const auto ours = weights_after<Ours>(options, device);
  const auto theirs = weights_after<Theirs>(options, device);
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-5, 1e-6)) << i;
}

TEST_F(TrainingOnGpu, FusedOptimizersStepAsLibTorchs) {
  expect_steps_of<optim::AdamW, torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.01).weight_decay(0.1).amsgrad(true),
      device_);
  expect_steps_of<optim::Adam, torch::optim::Adam>(
      torch::optim::AdamOptions(0.01).weight_decay(0.1), device_);
  expect_steps_of<optim::SGD, torch::optim::SGD>(
      torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true), device_);
  expect_steps_of<optim::Adagrad, torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.01).lr_decay(0.1), device_);
}

TEST_F(TrainingOnGpu, OverflowSkipsAStepAndHalvesTheScale) {
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16,
       .grad_scaler = {.init_scale = 1024},
       .world = {.rank = 0, .size = 1, .device = device_}});
  nn::Sequential net = net_with_values();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const Tensor x = torch::ones({4, 32}, torch::device(device_));
  const Tensor before = net->parameters()[0].detach().clone();
  const auto step = [&, &model = model, &optimizer = optimizer](double factor) {
    optimizer.zero_grad();
    accelerator.backward(model(x).square().mean() * factor);
    optimizer.step();
    return accelerator.optimizer_step_was_skipped();
  };
  EXPECT_TRUE(step(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(before.equal(net->parameters()[0]));
  EXPECT_FALSE(step(1));
  EXPECT_FALSE(before.equal(net->parameters()[0]));
}

TEST_F(TrainingOnGpu, SeedsDrawTheSameAndRecomputationToo) {
  const auto gradient = [&](bool recomputes, bool on_host) {
    set_seed(11);
    const Tensor x =
        torch::randn({64, 64}, torch::device(device_)).requires_grad_();
    const auto forward = [&] {
      return torch::dropout(torch::tanh(x * 2), 0.5, true);
    };
    const Tensor y = recomputes
        ? checkpoint(forward, {.offload_inputs = on_host})
        : forward();
    y.square().sum().backward();
    return x.grad().cpu();
  };
  const Tensor expected = gradient(false, false);
  EXPECT_TRUE(expected.equal(gradient(false, false)));
  EXPECT_TRUE(expected.equal(gradient(true, false)));
  EXPECT_TRUE(expected.equal(gradient(true, true)));
}

TEST_F(TrainingOnGpu, SavedTensorsWaitInHostMemory) {
  const auto run = [&](bool saves) {
    const Tensor x =
        torch::sin(torch::arange(1 << 20)).to(device_).requires_grad_();
    std::optional<SaveOnCpu> saving;
    if (saves) saving.emplace();
    Tensor y = x;
    for (int i = 0; i < 8; ++i) y = torch::tanh(y * 1.5);
    saving.reset();
    y.sum().backward();
    return x.grad().cpu();
  };
  EXPECT_TRUE(run(false).equal(run(true)));
}

TEST_F(TrainingOnGpu, LomoStepsInTheBackward) {
  const auto weights = [&](at::Device device) {
    const Accelerator accelerator(
        {.world = {.rank = 0, .size = 1, .device = device}});
    nn::Sequential net = net_with_values();
    auto model = accelerator.prepare(net);
    optim::Lomo lomo(net->parameters(), {.clip_grad_norm = 1});
    auto optimizer = accelerator.prepare(lomo);
    const Tensor x = torch::sin(torch::arange(4 * 32)).view({4, 32}).to(device);
    for (int i = 0; i < 4; ++i)
      accelerator.lomo_backward(model(x).square().mean(), 0.1);
    std::vector<Tensor> all;
    for (const Tensor& parameter : net->parameters())
      all.push_back(parameter.detach().cpu());
    return all;
  };
  const auto expected = weights(at::kCPU), found = weights(device_);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-5)) << i;
}

// A terabyte does not fit on any device.
TEST_F(TrainingOnGpu, BatchSizesShrinkUntilTheyFit) {
  std::vector<std::int64_t> tried;
  const std::int64_t found = find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        const Tensor x = torch::empty(
            {batch_size, std::int64_t{1} << 30},
            torch::dtype(torch::kByte).device(device_));
        return x.size(0);
      },
      {.starting_batch_size = 1024});
  EXPECT_EQ(tried.front(), 1024);
  EXPECT_EQ(tried.back(), found);
  EXPECT_LT(found, 1024);
  EXPECT_GE(found, 1);
}

}  // namespace training_gpu_test
}  // namespace accelerate
