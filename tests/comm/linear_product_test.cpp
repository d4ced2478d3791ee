// Products whose backward computes the input's gradient first and the weight's
// gradient while that is reduced: the values equal those of at::linear.
#include "comm/autograd/linear_product.h"

#include <ATen/autocast_mode.h>

#include "support/run_counted.h"

namespace accelerate {
namespace linear_product_test {

using detail::linear_product;
using detail::RegionEntrance;
using detail::TrafficCounter;
using torch::Tensor;

Tensor values(std::vector<std::int64_t> shape, int seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return torch::sin(torch::arange(count, torch::kDouble) * 0.7 + seed)
      .view(shape);
}

struct Factors {
  explicit Factors(std::vector<std::int64_t> input_shape, bool has_bias = true)
      : input(values(std::move(input_shape), 1).requires_grad_()) {
    if (has_bias) bias = values({4}, 3).requires_grad_();
  }
  std::vector<Tensor> inputs() const {
    return bias.defined() ? std::vector<Tensor>{input, weight, bias}
                          : std::vector<Tensor>{input, weight};
  }
  Tensor input, weight = values({4, 3}, 2).requires_grad_(), bias;
};

void expect_near(
    const std::vector<Tensor>& found,
    const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].sizes(), expected[i].sizes()) << i;
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-12, 1e-12)) << i;
  }
}

const std::vector<std::vector<std::int64_t>>
    kShapes{{3}, {5, 3}, {2, 5, 3}, {0, 3}, {2, 0, 3}, {2, 2, 2, 3}};

TEST(LinearProduct, HasTheValuesAndGradientsOfLinear) {
  for (const auto& shape : kShapes) {
    for (const bool has_bias : {true, false}) {
      const Factors factors(shape, has_bias);
      const std::optional<Tensor> bias =
          has_bias ? std::optional(factors.bias) : std::nullopt;
      const Tensor expected = at::linear(factors.input, factors.weight, bias);
      const Tensor found =
          linear_product(factors.input, factors.weight, factors.bias);
      EXPECT_TRUE(torch::equal(found, expected));
      const auto loss = [](const Tensor& y) { return y.pow(3).sum(); };
      const auto gradients = [&](const Tensor& y) {
        return torch::autograd::grad(
            {loss(y)}, factors.inputs(), {}, true, /*create_graph=*/true);
      };
      const auto first = gradients(found), reference = gradients(expected);
      expect_near(first, reference);
      const auto again = [&](const std::vector<Tensor>& grads) {
        Tensor sum = torch::zeros({}, torch::kDouble);
        for (const Tensor& grad : grads) sum = sum + grad.pow(2).sum();
        return torch::autograd::grad({sum}, factors.inputs());
      };
      expect_near(again(first), again(reference));
    }
  }
}

TEST(LinearProduct, ComputesOnlyTheGradientsThatAreAskedFor) {
  const Factors factors({5, 3});
  const Tensor y = linear_product(factors.input, factors.weight, factors.bias);
  for (const Tensor& each : factors.inputs()) {
    const Tensor expected = torch::autograd::grad(
        {at::linear(factors.input, factors.weight, factors.bias).sum()},
        {each})[0];
    expect_near(
        {torch::autograd::grad({y.sum()}, {each}, {}, true)[0]}, {expected});
  }
  const Tensor frozen = factors.weight.detach();
  const Tensor z = linear_product(factors.input, frozen);
  expect_near(
      torch::autograd::grad({z.sum()}, {factors.input}),
      {frozen.sum(0).expand({5, 3})});
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(linear_product(factors.input, frozen).requires_grad());
}

TEST(LinearProduct, ComputesInTheDtypeOfAutocast) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Tensor x = values({5, 3}, 1).to(torch::kFloat).requires_grad_();
  const Tensor w = values({4, 3}, 2).to(torch::kFloat).requires_grad_();
  const auto gradients = [&](const Tensor& y) {
    return torch::autograd::grad({y.to(torch::kFloat).sum()}, {x, w});
  };
  const Tensor found = linear_product(x, w), expected = at::linear(x, w);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(found.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(found, expected));
  const auto found_grads = gradients(found), grads = gradients(expected);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found_grads[i].scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(found_grads[i], grads[i]));
  }
}

// Runs `rank` with a counter of this rank's messages.
void run_counted(
    int num_ranks,
    const std::function<void(const World&, TrafficCounter&)>& rank) {
  testing::run_counted(
      num_ranks, [&](const WorldOptions& options, TrafficCounter& counter) {
        rank(World(options), counter);
      });
}

TEST(LinearProduct, ComputesWeightsWhileTheGradientOfTheInputTravels) {
  run_counted(2, [](const World& world, TrafficCounter& counter) {
    const Group& group = world.group();
    const Tensor x = values({6, 3}, 1).requires_grad_();
    const Tensor weight = values({4, 3}, world.rank()).requires_grad_();
    const auto expected = [&](int rank) {
      return values({4, 3}, rank).sum(0).expand({6, 3});
    };
    struct How {
      RegionEntrance entrance;
      std::string operation;
    };
    const Tensor own = x.narrow(0, 3 * world.rank(), 3);
    for (auto& [entrance, operation] : std::vector<How>{
             {RegionEntrance::copy(x, group), "all_reduce"},
             {RegionEntrance::gather(own, 0, group), "reduce_scatter"}}) {
      const Tensor y = linear_product(entrance, weight);
      counter.reset();
      TrafficCounter::Count at_weight;
      const auto hook =
          weight.register_hook([&, &name = operation](const Tensor&) {
            at_weight = counter.of(name);
          });
      const Tensor gradient = torch::autograd::grad({y.sum()}, {x, weight})[0];
      weight.remove_hook(hook);
      EXPECT_EQ(at_weight.begun, 1U) << operation;
      EXPECT_EQ(at_weight.finished, 0U) << operation;
      EXPECT_EQ(counter.of(operation).finished, 1U) << operation;
      if (operation == "all_reduce")
        expect_near({gradient}, {expected(0) + expected(1)});
    }
  });
}

TEST(LinearProduct, SendsTheGradientOfASharedInputOnce) {
  run_counted(2, [](const World& world, TrafficCounter& counter) {
    const Tensor x = values({6, 3}, 1).requires_grad_();
    std::vector<Tensor> weights;
    for (int i = 0; i < 3; ++i)
      weights.push_back(values({4, 3}, 10 * world.rank() + i).requires_grad_());
    RegionEntrance entrance = RegionEntrance::copy(x, world.group());
    Tensor sum = torch::zeros({6, 4}, torch::kDouble);
    for (const Tensor& weight : weights)
      sum = sum + linear_product(entrance, weight).pow(2);
    counter.reset();
    std::vector<TrafficCounter::Count> counts;
    for (const Tensor& weight : weights) {
      weight.register_hook(
          [&](const Tensor&) { counts.push_back(counter.of("all_reduce")); });
    }
    sum.sum().backward();
    ASSERT_EQ(counts.size(), 3U);
    for (const TrafficCounter::Count& count : counts) {
      EXPECT_EQ(count.begun, 1U);
      EXPECT_EQ(count.finished, 0U);
    }
    EXPECT_EQ(counter.total().begun, 1U);
    // Half of the 6 x 3 doubles, twice.
    EXPECT_EQ(counter.total().bytes, 144);
    Tensor expected = torch::zeros({6, 3}, torch::kDouble);
    for (const int rank : {0, 1}) {
      for (int i = 0; i < 3; ++i) {
        const Tensor weight = values({4, 3}, 10 * rank + i);
        const Tensor y = at::linear(x.detach(), weight);
        expected += 2 * y.matmul(weight);
      }
    }
    expect_near({x.grad()}, {expected});
  });
}

TEST(LinearProduct, MayBeDifferentiatedTwiceInARegion) {
  run_counted(2, [](const World& world, TrafficCounter&) {
    const Tensor x = values({6, 3}, 1).requires_grad_();
    const Tensor weight = values({4, 3}, world.rank()).requires_grad_();
    RegionEntrance entrance = RegionEntrance::copy(x, world.group());
    const Tensor y = linear_product(entrance, weight);
    const Tensor first = torch::autograd::grad(
        {y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    // All ranks have the same gradient, so each of them counts the loss.
    const Tensor second = torch::autograd::grad({first.pow(2).sum()}, {x})[0];
    const Tensor alone = values({6, 3}, 1).requires_grad_();
    const Tensor both = torch::cat(
        {at::linear(alone, values({4, 3}, 0)),
         at::linear(alone, values({4, 3}, 1))},
        -1);
    const Tensor first_alone = torch::autograd::grad(
        {both.pow(3).sum()}, {alone}, {}, true, /*create_graph=*/true)[0];
    const Tensor second_alone =
        torch::autograd::grad({first_alone.pow(2).sum()}, {alone})[0];
    expect_near({first, second}, {first_alone, second_alone});
  });
}

}  // namespace linear_product_test
}  // namespace accelerate
