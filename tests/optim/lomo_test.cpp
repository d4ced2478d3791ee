#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace lomo_test {

using testing::expect_error;
using torch::Tensor;

torch::nn::Sequential fixed_net() {
  torch::nn::Sequential net(
      torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 2));
  torch::NoGradGuard no_grad;
  double phase = 0;
  for (Tensor& p : net->parameters()) {
    p.copy_(torch::sin(torch::arange(p.numel(), torch::kFloat) + phase++)
                .view(p.sizes()));
  }
  return net;
}

Tensor loss_of(torch::nn::Sequential& net, double factor = 1) {
  return net->forward(torch::tensor({{0.5f, -1.f, 2.f}, {1.f, 0.f, -1.f}}))
             .square()
             .sum() *
      factor;
}

void expect_equal(
    const torch::nn::Sequential& a,
    const torch::nn::Sequential& b) {
  const auto p = a->parameters(), q = b->parameters();
  for (std::size_t i = 0; i < p.size(); ++i)
    EXPECT_TRUE(torch::allclose(p[i], q[i], 1e-5, 1e-6)) << i;
}

TEST(Lomo, DescendsAndKeepsNoGradient) {
  auto net = fixed_net(), twin = fixed_net();
  optim::Lomo lomo(net->parameters());
  torch::optim::SGD sgd(twin->parameters(), 0.05);
  for (int step = 0; step < 3; ++step) {
    lomo.fused_backward(loss_of(net), 0.05);
    for (const Tensor& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    sgd.zero_grad();
    loss_of(twin).backward();
    sgd.step();
  }
  expect_equal(net, twin);
}

TEST(Lomo, ClipsByTheNormOfAllGradients) {
  auto net = fixed_net(), twin = fixed_net();
  optim::Lomo lomo(net->parameters(), {.clip_grad_norm = 0.5});
  torch::optim::SGD sgd(twin->parameters(), 0.05);
  lomo.fused_backward(loss_of(net, 10), 0.05);
  loss_of(twin, 10).backward();
  torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.5);
  sgd.step();
  expect_equal(net, twin);
}

TEST(Lomo, LeavesGradientsOfAnOrdinaryBackwardAlone) {
  auto net = fixed_net();
  optim::Lomo lomo(net->parameters());
  loss_of(net).backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
  expect_equal(net, fixed_net());
}

TEST(Lomo, UpdatesBf16WeightsInFp32) {
  Tensor p = torch::full({2}, 1.f).to(torch::kBFloat16).requires_grad_();
  optim::Lomo lomo({p}, {.weight_decay = 0.5});
  lomo.fused_backward(p.sum(), 0.25);
  EXPECT_EQ(p[0].item<double>(), 0.625);  // 1 (1 - 0.25 x 0.5) - 0.25
}

// The formulas of the paper's code, by hand, for one step on a vector: the
// first step has no earlier moments, so the update is the gradient's sign.
TEST(AdaLomo, TakesStepsOfTheSizeOfTheParameter) {
  Tensor p = torch::tensor({3.f, 4.f}).requires_grad_();
  optim::AdaLomo adalomo({p});
  adalomo.fused_backward((p * torch::tensor({0.1f, -7.f})).sum(), 0.1);
  const double size = 5 / std::sqrt(2.0);
  EXPECT_NEAR(p[0].item<double>(), 3 - 0.1 * size, 1e-5);
  EXPECT_NEAR(p[1].item<double>(), 4 + 0.1 * size, 1e-5);
}

TEST(AdaLomo, LowersTheLossOfANet) {
  auto net = fixed_net();
  optim::AdaLomo adalomo(
      net->parameters(), {.weight_decay = 0.01, .clip_grad_norm = 1.0});
  const double before = loss_of(net).item<double>();
  for (int step = 0; step < 30; ++step)
    adalomo.fused_backward(loss_of(net), 0.05);
  EXPECT_LT(loss_of(net).item<double>(), before / 10);
}

TEST(Lomo, RefusesAParameterOfAnotherLomo) {
  auto net = fixed_net();
  optim::Lomo lomo(net->parameters());
  expect_error<ConfigError>(
      [&] { optim::Lomo other(net->parameters()); }, "another optimizer");
}

}  // namespace lomo_test
}  // namespace accelerate
