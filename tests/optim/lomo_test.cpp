#include <algorithm>
#include <cmath>
#include <vector>

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

// Takes one step from (3, 4) with the gradient (1, -20) and a learning rate of
// 0.1.
std::vector<double> step_of(const optim::LomoOptions& options) {
  Tensor p = torch::tensor({3.f, 4.f}).requires_grad_();
  optim::Lomo lomo({p}, options);
  lomo.fused_backward((p * torch::tensor({1.f, -20.f})).sum(), 0.1);
  return {p[0].item<double>(), p[1].item<double>()};
}

TEST(Lomo, DoesWhatEachOptionSays) {
  const auto expect = [](const std::vector<double>& found, double a, double b) {
    EXPECT_NEAR(found[0], a, 1e-5);
    EXPECT_NEAR(found[1], b, 1e-5);
  };
  expect(step_of({}), 2.9, 6);
  expect(step_of({.weight_decay = 0.5}), 3 * 0.95 - 0.1, 4 * 0.95 + 2);
  expect(step_of({.clip_grad_value = 5}), 2.9, 4.5);
  const double norm = std::sqrt(401.0);
  expect(step_of({.clip_grad_norm = 2}), 3 - 0.2 / norm, 4 + 4 / norm);
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

// One step on a vector by the formulas of the paper's code: the first step has
// no earlier moments, so the update is the gradient's sign.
TEST(AdaLomo, TakesStepsOfTheSizeOfTheParameter) {
  Tensor p = torch::tensor({3.f, 4.f}).requires_grad_();
  optim::AdaLomo adalomo({p});
  adalomo.fused_backward((p * torch::tensor({0.1f, -7.f})).sum(), 0.1);
  const double size = 5 / std::sqrt(2.0);
  EXPECT_NEAR(p[0].item<double>(), 3 - 0.1 * size, 1e-5);
  EXPECT_NEAR(p[1].item<double>(), 4 + 0.1 * size, 1e-5);
}

TEST(AdaLomo, RefusesOptionsThatWouldMakeNoSense) {
  const std::vector<Tensor> p{torch::ones({2}).requires_grad_()};
  expect_error<ConfigError>(
      [&] { optim::AdaLomo(p, {.decay_rate = 0}); },
      "decay_rate of AdaLomo must be below 0, but is 0");
  expect_error<ConfigError>(
      [&] { optim::AdaLomo(p, {.clip_threshold = -1}); },
      "clip_threshold of AdaLomo must be above 0, but is -1");
}

// Two steps on a vector by the formulas of the paper's code.
std::vector<double> two_steps(const optim::AdaLomoOptions& o) {
  const auto rms = [](const std::vector<double>& v) {
    return std::sqrt((v[0] * v[0] + v[1] * v[1]) / 2);
  };
  std::vector<double> p{3, 4}, moments{0, 0};
  for (int step = 1; step <= 2; ++step) {
    std::vector<double> g{0.1 * step, -7.0 / step};
    if (const auto bound = o.clip_grad_value) {
      for (double& one : g) one = std::clamp(one, -*bound, *bound);
    }
    if (const auto bound = o.clip_grad_norm) {
      const double norm = std::hypot(g[0], g[1]);
      for (double& one : g) one *= std::min(1.0, *bound / norm);
    }
    const double keep = 1 - std::pow(step, o.decay_rate);
    for (int i : {0, 1}) {
      moments[i] =
          keep * moments[i] + (1 - keep) * (g[i] * g[i] + o.eps_square);
      g[i] /= std::sqrt(moments[i]);
    }
    const double rate = 0.1 * std::max(rms(p), o.eps_scale);
    const double excess = std::max(1.0, rms(g) / o.clip_threshold);
    for (int i : {0, 1}) {
      p[i] *= 1 - rate * o.weight_decay;
      p[i] -= rate * g[i] / excess;
    }
  }
  return p;
}

TEST(AdaLomo, DoesWhatEachOptionSays) {
  const std::vector<double> plain = two_steps({});
  // Clipping has a visible effect if updates are not just signs.
  const optim::AdaLomoOptions visible{.eps_square = 1};
  optim::AdaLomoOptions by_norm = visible, by_value = visible;
  by_norm.clip_grad_norm = 0.5;
  by_value.clip_grad_value = 0.5;
  const std::vector<optim::AdaLomoOptions> all{
      {},
      {.weight_decay = 0.5},
      {.decay_rate = -0.3},
      {.clip_threshold = 0.5},
      visible,
      {.eps_scale = 10},
      by_norm,
      by_value};
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<double> expected = two_steps(all[i]);
    Tensor p = torch::tensor({3.f, 4.f}).requires_grad_();
    optim::AdaLomo adalomo({p}, all[i]);
    for (const auto& g :
         {torch::tensor({0.1f, -7.f}), torch::tensor({0.2f, -3.5f})})
      adalomo.fused_backward((p * g).sum(), 0.1);
    EXPECT_NEAR(p[0].item<double>(), expected[0], 1e-4);
    EXPECT_NEAR(p[1].item<double>(), expected[1], 1e-4);
    const std::vector<double>& before = i < 6 ? plain : two_steps(visible);
    if (i > 0) {
      EXPECT_GT(
          std::hypot(expected[0] - before[0], expected[1] - before[1]), 1e-2);
    }
  }
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
