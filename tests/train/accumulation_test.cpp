#include <accelerate/accelerate.h>

#include <numeric>
#include <random>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace {

using testing::expect_error;
using testing::run_on_ranks;
namespace F = torch::nn::functional;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

torch::nn::Linear one_weight() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.zero_();
  return net;
}

// Weights after each micro-step of one pass over 1 .. n, windows of 2, the loss
// being w x and the rate 1.
std::vector<double> weights_of_a_pass(int n, const GradientAccumulationOptions& options) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .gradient_accumulation = options, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, DataLoader(TensorDataset{torch::arange(1., n + 1.).view({-1, 1})}));
  std::vector<double> weights;
  for (auto& [x] : loader) {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(x).sum());
    optimizer.step();
    optimizer.zero_grad();
    weights.push_back(net->weight.item<double>());
  }
  return weights;
}

TEST(Accumulation, DividesAShortWindowByItsTrueLength) {
  EXPECT_THAT(weights_of_a_pass(3, {}), ::testing::ElementsAre(0, -1.5, -4.5));
}

TEST(Accumulation, DividesAShortWindowByTheFullOneOnRequest) {
  EXPECT_THAT(
      weights_of_a_pass(3, {.divide_by_full_window = true}), ::testing::ElementsAre(0, -1.5, -3));
}

TEST(Accumulation, CarriesAWindowIntoTheNextPassOnRequest) {
  EXPECT_THAT(
      weights_of_a_pass(3, {.sync_with_dataloader = false}), ::testing::ElementsAre(0, -1.5, -1.5));
}

// Windows of 3 over 5 batches: the second has only 2.
TEST(Accumulation, BringsEarlierMicroStepsOfAShortWindowInLine) {
  for (const bool sync_each_batch : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      Accelerator accelerator(
          {.gradient_accumulation_steps = 3,
           .gradient_accumulation = {.sync_each_batch = sync_each_batch},
           .world = world});
      auto net = one_weight();
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer, loader] = accelerator.prepare(
          net, sgd, DataLoader(TensorDataset{torch::arange(1., 11.).view({-1, 1})}));
      std::vector<double> weights;
      for (auto& [x] : loader) {
        auto micro_step = accelerator.accumulate(model);
        accelerator.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
        weights.push_back(net->weight.item<double>());
      }
      // Means of 1 .. 6 and of 7 .. 10.
      EXPECT_THAT(weights, ::testing::Pointwise(::testing::DoubleNear(1e-6), {0., 0., -3.5, -3.5, -12.}));
    });
  }
}

TEST(Accumulation, AlignsAShortWindowOnceHoweverManyLosses) {
  Accelerator accelerator({.gradient_accumulation_steps = 4, .world = alone()});
  auto first = one_weight(), second = one_weight();
  torch::optim::SGD sgd_1(first->parameters(), 1.0), sgd_2(second->parameters(), 1.0);
  auto [model_1, model_2, optimizer_1, optimizer_2, loader] = accelerator.prepare(
      first, second, sgd_1, sgd_2, DataLoader(TensorDataset{torch::tensor({2., 4.}).view({-1, 1})}));
  for (auto& [x] : loader) {
    auto micro_step = accelerator.accumulate(model_1, model_2);
    accelerator.backward(model_1(x).sum());
    accelerator.backward(model_2(x).sum() * 10);
    optimizer_1.step();
    optimizer_2.step();
  }
  EXPECT_DOUBLE_EQ(first->weight.item<double>(), -3);
  EXPECT_DOUBLE_EQ(second->weight.item<double>(), -30);
}

torch::nn::Linear fixed_net() {
  torch::nn::Linear net(torch::nn::LinearOptions(3, 2));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  net->weight.copy_(torch::tensor({0.3, -0.2, 0.9, -0.5, 0.4, 0.1}, torch::kDouble).view({2, 3}));
  net->bias.copy_(torch::tensor({0.2, -0.7}, torch::kDouble));
  return net;
}

std::vector<torch::Tensor> gradients_of_the_whole(const torch::Tensor& x, const torch::Tensor& y) {
  torch::nn::Linear net = fixed_net();
  if (x.size(0) == 0) return {torch::zeros_like(net->weight), torch::zeros_like(net->bias)};
  F::cross_entropy(net(x), y).backward();
  return {net->weight.grad(), net->bias.grad()};
}

struct Layout {
  int micro_steps;
  bool sync_each_batch;
};

// One way to spread items over the micro-steps and ranks of a window; all ranks
// draw the same.
void check_a_split(
    const Accelerator& accelerator,
    const Model<torch::nn::LinearImpl>& model,
    std::mt19937& random) {
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  const int ranks = accelerator.num_processes();
  std::vector<std::int64_t> items;
  for (int i = 0; i < ranks * accelerator.gradient_accumulation_steps(); ++i) {
    items.push_back(pick(0, 4) == 0 ? 0 : pick(1, 9));
  }
  const auto total = std::accumulate(items.begin(), items.end(), std::int64_t{0});
  const auto generator = at::detail::createCPUGenerator(random());
  const auto x = torch::randn({total, 3}, generator, torch::kDouble);
  const auto y = torch::randint(0, 2, {total}, generator, torch::kLong);
  std::int64_t begin = 0;
  for (int m = 0; m < accelerator.gradient_accumulation_steps(); ++m) {
    const auto micro_step = accelerator.accumulate(model);
    for (int r = 0; r < ranks; ++r) {
      const std::int64_t count = items[static_cast<std::size_t>(m * ranks + r)];
      if (r == accelerator.process_index()) {
        // With a masked row; where it is alone, the mean is no number.
        const auto rows = torch::cat({x.narrow(0, begin, count), torch::ones({1, 3}, torch::kDouble)});
        const auto labels = torch::cat({y.narrow(0, begin, count), torch::full({1}, -100, torch::kLong)});
        accelerator.backward(F::cross_entropy(model(rows), labels), {.num_items = count});
      }
      begin += count;
    }
  }
  const auto expected = gradients_of_the_whole(x, y);
  ASSERT_TRUE(torch::allclose(model->weight.grad(), expected[0], 1e-9, 1e-12));
  ASSERT_TRUE(torch::allclose(model->bias.grad(), expected[1], 1e-9, 1e-12));
  model->weight.mutable_grad().reset();
  model->bias.mutable_grad().reset();
}

// Law: however a batch is cut into micro-steps and ranks, with however many
// items each, the gradient is that of the mean over all items.
TEST(Accumulation, WeighsLossesByTheirItemsHoweverTheyAreSplit) {
  constexpr int kSplits = 150;
  for (const int ranks : {1, 2, 3}) {
    for (const Layout layout : {Layout{1, false}, {2, false}, {3, true}, {4, false}}) {
      run_on_ranks(ranks, [&](const WorldOptions& world) {
        Accelerator accelerator(
            {.gradient_accumulation_steps = layout.micro_steps,
             .gradient_accumulation = {.sync_each_batch = layout.sync_each_batch},
             .world = world});
        auto net = fixed_net();
        auto model = accelerator.prepare(net);
        std::mt19937 random(static_cast<unsigned>(layout.micro_steps));
        for (int i = 0; i < kSplits && !::testing::Test::HasFatalFailure(); ++i) {
          check_a_split(accelerator, model, random);
        }
      });
    }
  }
}

TEST(Accumulation, WeighsItemsInAShortWindowToo) {
  Accelerator accelerator({.gradient_accumulation_steps = 4, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, DataLoader(TensorDataset{torch::tensor({2., 5.}).view({-1, 1})}));
  std::int64_t items = 1;
  for (auto& [x] : loader) {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(x).sum(), {.num_items = items});
    optimizer.step();
    items = 2;
  }
  EXPECT_DOUBLE_EQ(net->weight.item<double>(), -4);  // (1 x 2 + 2 x 5) / 3
}

TEST(Accumulation, RefusesItemCountsInPartOfAWindow) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .world = alone()});
  auto net = one_weight();
  auto model = accelerator.prepare(net);
  const auto loss = [&] { return model(torch::ones({1, 1})).sum(); };
  {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(loss(), {.num_items = 3});
    expect_error<ConfigError>(
        [&] { accelerator.backward(loss(), {.num_items = 4}); }, "equally many items");
    expect_error<ConfigError>([&] { accelerator.backward(loss(), {.num_items = -1}); }, "at least 0");
  }
  auto micro_step = accelerator.accumulate(model);
  expect_error<ConfigError>([&] { accelerator.backward(loss()); }, "in all or in none");
}

}  // namespace
}  // namespace accelerate
