#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace accumulation_test {

using testing::expect_error;
using testing::run_on_ranks;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

torch::nn::Linear one_weight() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.zero_();
  return net;
}

// Weights after each micro-step of one pass over 1 .. n, with windows of 2, the
// loss w x and a learning rate of 1.
std::vector<double> weights_of_a_pass(
    int n,
    const GradientAccumulationOptions& options) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = 2,
       .gradient_accumulation = options,
       .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      sgd,
      DataLoader(TensorDataset{torch::arange(1., n + 1.).view({-1, 1})}));
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
      weights_of_a_pass(3, {.divide_by_full_window = true}),
      ::testing::ElementsAre(0, -1.5, -3));
}

TEST(Accumulation, CarriesAWindowIntoTheNextPassOnRequest) {
  EXPECT_THAT(
      weights_of_a_pass(3, {.sync_with_dataloader = false}),
      ::testing::ElementsAre(0, -1.5, -1.5));
}

TEST(Accumulation, TakesTheWindowAsOneOfItsOptions) {
  const Accelerator accelerator(
      {.gradient_accumulation = {.num_steps = 3}, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<double> weights;
  for (const double x : {1., 2., 6.}) {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(torch::full({1, 1}, x)).sum());
    optimizer.step();
    weights.push_back(net->weight.item<double>());
  }
  EXPECT_THAT(weights, ::testing::ElementsAre(0, 0, -3));
  expect_error<ConfigError>(
      [] { weights_of_a_pass(3, {.num_steps = 3}); },
      "gradient_accumulation_steps is 2, but gradient_accumulation.num_steps "
      "is 3; set only one of them");
}

// Windows of 3 over 5 batches: the second has only 2.
TEST(Accumulation, RescalesEarlierMicroStepsOfAShortWindow) {
  for (const bool sync_each_batch : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      Accelerator accelerator(
          {.gradient_accumulation_steps = 3,
           .gradient_accumulation = {.sync_each_batch = sync_each_batch},
           .world = world});
      auto net = one_weight();
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer, loader] = accelerator.prepare(
          net,
          sgd,
          DataLoader(TensorDataset{torch::arange(1., 11.).view({-1, 1})}));
      std::vector<double> weights;
      for (auto& [x] : loader) {
        auto micro_step = accelerator.accumulate(model);
        accelerator.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
        weights.push_back(net->weight.item<double>());
      }
      // Means of 1 .. 6 and of 7 .. 10.
      EXPECT_THAT(
          weights,
          ::testing::Pointwise(
              ::testing::DoubleNear(1e-6), {0., 0., -3.5, -3.5, -12.}));
    });
  }
}

TEST(Accumulation, RescalesAShortWindowOnceForSeveralLosses) {
  Accelerator accelerator({.gradient_accumulation_steps = 4, .world = alone()});
  auto first = one_weight(), second = one_weight();
  torch::optim::SGD sgd_1(first->parameters(), 1.0),
      sgd_2(second->parameters(), 1.0);
  auto [model_1, model_2, optimizer_1, optimizer_2, loader] =
      accelerator.prepare(
          first,
          second,
          sgd_1,
          sgd_2,
          DataLoader(TensorDataset{torch::tensor({2., 4.}).view({-1, 1})}));
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

TEST(Accumulation, WeightsItemsInAShortWindowToo) {
  Accelerator accelerator({.gradient_accumulation_steps = 4, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      sgd,
      DataLoader(TensorDataset{torch::tensor({2., 5.}).view({-1, 1})}));
  std::int64_t items = 1;
  for (auto& [x] : loader) {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(x).sum(), {.num_items = items});
    optimizer.step();
    items = 2;
  }
  EXPECT_DOUBLE_EQ(net->weight.item<double>(), -4);  // (1 x 2 + 2 x 5) / 3
}

// Megatron-LM's calculate_per_token_loss.
TEST(Accumulation, WeighsItemsUnlessMegatronSaysOtherwise) {
  const auto weight_after = [](std::optional<bool> per_token) {
    const MegatronLMOptions megatron{
        .gradient_clipping = 0, .calculate_per_token_loss = per_token};
    const Accelerator accelerator(
        {.gradient_accumulation_steps = 2,
         .parallel = {.megatron_lm = megatron},
         .world = alone()});
    auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (const std::int64_t items : {1, 3}) {
      auto micro_step = accelerator.accumulate(model);
      const torch::Tensor x = torch::full({1, 1}, items == 1 ? 2.0 : 6.0);
      accelerator.backward(model(x).sum(), {.num_items = items});
      optimizer.step();
    }
    return net->weight.item<double>();
  };
  EXPECT_DOUBLE_EQ(weight_after(std::nullopt), -5);  // (1 x 2 + 3 x 6) / 4
  EXPECT_DOUBLE_EQ(weight_after(true), -5);
  EXPECT_DOUBLE_EQ(weight_after(false), -4);  // (2 + 6) / 2
}

// A count that weighs nothing is allowed with uneven inputs.
TEST(Accumulation, TakesUnusedCountsOfItemsInAJoin) {
  const auto run = [](bool per_token) {
    const Accelerator accelerator(
        {.parallel =
             {.megatron_lm =
                  MegatronLMOptions{
                      .gradient_clipping = 0,
                      .calculate_per_token_loss = per_token}},
         .world = alone()});
    auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.join_uneven_inputs([&, &model = model, &optimizer = optimizer] {
      accelerator.backward(
          model(torch::full({1, 1}, 2.0)).sum(), {.num_items = 3});
      optimizer.step();
    });
    return net->weight.item<double>();
  };
  EXPECT_EQ(run(false), -2);
  expect_error<ConfigError>(
      [&] { run(true); }, "backward() with num_items counts");
}

// Weights after each of two batches of 8 rows whose parts are micro-steps, with
// windows of 4, the loss w and a learning rate of 1.
std::vector<double> weights_of_parts(
    const AcceleratorOptions& options,
    int num_parts,
    bool counts_items = false) {
  const Accelerator accelerator(options);
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      sgd,
      DataLoader(
          TensorDataset{torch::ones({16 * options.world.size.value(), 1})},
          {.batch_size = 8}));
  std::vector<double> weights;
  for (auto& [x] : loader) {
    for (const torch::Tensor& part : x.chunk(num_parts)) {
      auto micro_step = accelerator.accumulate(model);
      BackwardOptions backward;
      if (counts_items) backward.num_items = part.size(0);
      accelerator.backward(model(part).mean(), backward);
      optimizer.step();
      optimizer.zero_grad();
    }
    weights.push_back(net->weight.item<double>());
  }
  return weights;
}

TEST(Accumulation, WeighsPartsOfTheLastBatchAsPartsOfOthers) {
  for (const bool counts_items : {false, true}) {
    for (const int size : {1, 2}) {
      run_on_ranks(size, [&](const WorldOptions& world) {
        const auto weights = [&](int num_parts) {
          return weights_of_parts(
              {.gradient_accumulation_steps = 4, .world = world},
              num_parts,
              counts_items);
        };
        EXPECT_THAT(weights(4), ::testing::ElementsAre(-1, -2));
        // The first step is the last batch's.
        EXPECT_THAT(weights(2), ::testing::ElementsAre(0, -1));
        EXPECT_THAT(weights(1), ::testing::ElementsAre(0, -1));
        EXPECT_THAT(weights(8), ::testing::ElementsAre(-2, -4));
      });
    }
  }
}

class FiveNumbers {
 public:
  std::optional<std::tuple<torch::Tensor>> next() {
    if (next_ == 5) return std::nullopt;
    return std::tuple{torch::full({1}, static_cast<float>(++next_))};
  }
  void reset() { next_ = 0; }

 private:
  int next_ = 0;
};

TEST(Accumulation, EndsTheWindowWithALoaderOfUnknownLength) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, DataLoader(FiveNumbers(), {.batch_size = 1}));
  std::vector<double> weights;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x] : loader) {
      auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(model(x).sum());
      optimizer.step();
      if (accelerator.sync_gradients())
        weights.push_back(net->weight.item<double>());
    }
  }
  // (1 + 2) / 2, (3 + 4) / 2, then 5 alone.
  EXPECT_EQ(weights, (std::vector<double>{-1.5, -5, -10, -11.5, -15, -20}));
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
        [&] { accelerator.backward(loss(), {.num_items = 4}); },
        "num_items must be the same");
    expect_error<ConfigError>(
        [&] { accelerator.backward(loss(), {.num_items = -1}); }, "at least 0");
  }
  auto micro_step = accelerator.accumulate(model);
  expect_error<ConfigError>(
      [&] { accelerator.backward(loss()); }, "of a window or in none");
}

}  // namespace accumulation_test
}  // namespace accelerate
