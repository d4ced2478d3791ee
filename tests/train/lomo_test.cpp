#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace lomo_test {

using testing::expect_error;
using testing::run_on_ranks;

torch::nn::Linear fixed_net() {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 2));
  torch::NoGradGuard no_grad;
  net->weight.copy_(torch::tensor({{0.5f, -1.f}, {0.25f, 2.f}}));
  net->bias.zero_();
  return net;
}

// Returns rows r, r + n, ... of six: the rows of rank r of n.
torch::Tensor rows_of(int rank, int ranks) {
  const auto all = torch::arange(12, torch::kFloat).view({6, 2}) / 10;
  std::vector<torch::Tensor> own;
  for (int i = rank; i < 6; i += ranks) own.push_back(all[i]);
  return torch::stack(own);
}

TEST(LomoBackward, EqualsDescentOnTheWholeBatch) {
  auto reference = fixed_net();
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    reference(rows_of(0, 1)).square().mean().backward();
    sgd.step();
  }
  for (const int ranks : {1, 2, 3}) {
    run_on_ranks(ranks, [&](const WorldOptions& world) {
      Accelerator accelerator({.world = world});
      auto net = fixed_net();
      optim::Lomo lomo(net->parameters());
      auto [model, optimizer] = accelerator.prepare(net, lomo);
      for (int step = 0; step < 3; ++step) {
        accelerator.lomo_backward(
            model(rows_of(accelerator.process_index(), ranks)).square().mean(),
            0.1);
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_FALSE(net->weight.grad().defined());
      }
      EXPECT_TRUE(torch::allclose(net->weight, reference->weight, 1e-5, 1e-6));
      EXPECT_TRUE(torch::allclose(net->bias, reference->bias, 1e-5, 1e-6));
    });
  }
}

TEST(LomoBackward, RefusesUnsupportedSettings) {
  const WorldOptions alone{.rank = 0, .size = 1, .device = at::kCPU};
  auto net = fixed_net();
  const auto loss = [&] { return net(torch::ones({1, 2})).sum(); };
  {
    Accelerator accelerator({.world = alone});
    expect_error<ConfigError>(
        [&] { accelerator.lomo_backward(loss(), 0.1); }, "there are 0");
  }
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16,
       .gradient_accumulation_steps = 2,
       .world = alone});
  optim::Lomo lomo(net->parameters());
  auto [model, optimizer] = accelerator.prepare(net, lomo);
  expect_error<ConfigError>(
      [&] { accelerator.lomo_backward(loss(), 0.1); }, "set it to 1");
  expect_error<ConfigError>(
      [&] { accelerator.lomo_backward({}, 0.1); },
      "the loss of lomo_backward() must be defined");
  expect_error<ConfigError>(
      [&] { accelerator.lomo_backward(loss(), 0.1); }, "use bf16 or no");
}

TEST(LomoBackward, RefusesMastersThatWouldOverwriteItsUpdates) {
  const WorldOptions alone{.rank = 0, .size = 1, .device = at::kCPU};
  Accelerator accelerator({.master_weights = true, .world = alone});
  auto net = fixed_net();
  net->to(at::kBFloat16);
  optim::Lomo lomo(net->parameters());
  auto [model, optimizer] = accelerator.prepare(net, lomo);
  const auto loss = model(torch::ones({1, 2}, at::kBFloat16)).sum();
  expect_error<ConfigError>(
      [&] { accelerator.lomo_backward(loss, 0.1); },
      "leave out master_weights");
}

}  // namespace lomo_test
}  // namespace accelerate
