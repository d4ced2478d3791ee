// What an Accelerator reports about windows and loaders, and what ends them.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace gradient_state_test {

using testing::expect_error;
using testing::run_on_ranks;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

// y = w x, where w starts at 0.
torch::nn::Linear one_weight() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.zero_();
  return net;
}

double weight_of(const torch::nn::Linear& net) {
  return net->weight.item<double>();
}

torch::Tensor input(double x) { return torch::full({1, 1}, x); }

TEST(GradientState, TellsWhereTheLoopIs) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto [first, second] = accelerator.prepare(
        DataLoader(TensorDataset{torch::arange(7)}, {.batch_size = 2}),
        DataLoader(TensorDataset{torch::arange(2)}, {.batch_size = 1}));
    const GradientState state = accelerator.gradient_state();
    const auto expect_outside = [&] {
      EXPECT_FALSE(state.in_dataloader());
      EXPECT_FALSE(state.end_of_dataloader());
      EXPECT_EQ(state.remainder(), -1);
      EXPECT_FALSE(state.active_dataloader());
    };
    expect_outside();
    int number = 0;
    for (auto& batch : first) {
      static_cast<void>(batch);
      const bool is_last = ++number == 2;
      EXPECT_TRUE(state.in_dataloader());
      EXPECT_EQ(state.end_of_dataloader(), is_last);
      EXPECT_EQ(state.remainder(), is_last ? 3 : -1);
      EXPECT_EQ(state.active_dataloader()->index, 0);
      EXPECT_EQ(state.active_dataloader()->num_batches, number);
      for (auto& inner : second) {
        static_cast<void>(inner);
        EXPECT_EQ(state.active_dataloader()->index, 1);
        EXPECT_TRUE(state.active_dataloader()->end_of_dataloader);
        // Nothing was repeated.
        EXPECT_EQ(state.remainder(), 0);
      }
      EXPECT_EQ(state.end_of_dataloader(), is_last);
    }
    expect_outside();
    for (auto& batch : second) {
      static_cast<void>(batch);
      break;
    }
    expect_outside();
  });
}

// `make` returns a loader of at least two batches.
void end_with_the_loader(auto make) {
  const Accelerator accelerator({.world = alone()});
  const GradientState state = accelerator.gradient_state();
  std::optional loader(accelerator.prepare(make()));
  {
    auto batch = loader->begin();
    EXPECT_TRUE(state.in_dataloader());
    loader.reset();
    EXPECT_FALSE(state.in_dataloader());
    EXPECT_EQ(state.remainder(), -1);
    expect_error<ConfigError>([&] { ++batch; }, "loader");
  }
  EXPECT_FALSE(state.in_dataloader());
}

TEST(GradientState, LeavesAPassWhoseLoaderIsDestroyed) {
  end_with_the_loader([] {
    return DataLoader(TensorDataset{torch::arange(6)}, {.batch_size = 2});
  });
  end_with_the_loader([] {
    return DataLoader(
        TensorDataset{torch::arange(6)}, {.batch_size = 2, .num_workers = 2});
  });
  end_with_the_loader([] {
    return torch::data::make_data_loader(
        torch::data::datasets::TensorDataset(torch::arange(6)), 2);
  });
}

TEST(GradientState, TellsWhereTheWindowIs) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 3,
       .gradient_accumulation = {.sync_with_dataloader = false},
       .world = alone()});
  const GradientState state = accelerator.gradient_state();
  EXPECT_EQ(state.num_steps(), 3);
  EXPECT_FALSE(state.sync_with_dataloader());
  EXPECT_TRUE(state.sync_gradients());
  auto net = one_weight();
  auto model = accelerator.prepare(net);
  std::vector<bool> syncs;
  for (int i = 0; i < 3; ++i) {
    auto micro_step = accelerator.accumulate(model);
    syncs.push_back(state.sync_gradients());
  }
  EXPECT_THAT(syncs, ::testing::ElementsAre(false, false, true));
}

TEST(GradientState, ChangesTheLengthOfWindowsToCome) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<double> weights;
  const auto step = [&, &model = model, &optimizer = optimizer](double x) {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(input(x)).sum());
    optimizer.step();
    optimizer.zero_grad();
    weights.push_back(weight_of(net));
  };
  step(1);
  expect_error<ConfigError>(
      [&] { accelerator.gradient_state().set_num_steps(3); },
      "in the middle of a window of 2");
  step(3);
  accelerator.gradient_state().set_num_steps(3);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
  for (const double x : {3., 6., 9.}) step(x);
  accelerator.gradient_state().set_num_steps(1);
  step(1);
  EXPECT_THAT(weights, ::testing::ElementsAre(0, -2, -2, -2, -8, -9));
  expect_error<ConfigError>(
      [&] { accelerator.gradient_state().set_num_steps(0); },
      "must be at least 1");
}

TEST(GradientState, HoldsStepsBackOnRequest) {
  const Accelerator accelerator({.world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(input(2)).sum());
  accelerator.gradient_state().set_sync_gradients(false);
  EXPECT_FALSE(accelerator.sync_gradients());
  optimizer.step();
  EXPECT_EQ(weight_of(net), 0);
  accelerator.gradient_state().set_sync_gradients(true);
  optimizer.step();
  EXPECT_EQ(weight_of(net), -2);
}

int count_window_warnings(int num_backwards, bool accumulates) {
  int count = 0;
  AcceleratorOptions options{
      .gradient_accumulation_steps = 4, .world = alone()};
  options.world.logger = Logger(
      [&](const LogRecord& record) {
        count += static_cast<int>(
            record.message.find("no accumulate() is open") !=
            std::string_view::npos);
      },
      LogLevel::warning);
  const Accelerator accelerator(options);
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < num_backwards; ++i) {
      if (accumulates) {
        auto micro_step = accelerator.accumulate(model);
        accelerator.backward(model(input(1)).sum());
      } else {
        accelerator.backward(model(input(1)).sum());
      }
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return count;
}

TEST(Windows, WarnOnceIfNoneIsEverOpened) {
  EXPECT_EQ(count_window_warnings(1, false), 1);
  EXPECT_EQ(count_window_warnings(2, false), 1);
  // A window by hand, and windows of accumulate().
  EXPECT_EQ(count_window_warnings(4, false), 0);
  EXPECT_EQ(count_window_warnings(1, true), 0);
}

TEST(Windows, BeginAnewAfterFreeMemory) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 3, .world = alone()});
  auto net = one_weight();
  {
    auto model = accelerator.prepare(net);
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(model(input(1)).sum(), {.num_items = 1});
    net->weight.mutable_grad().reset();
  }
  accelerator.free_memory();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<bool> syncs;
  for (const double x : {1., 2., 6.}) {
    auto micro_step = accelerator.accumulate(model);
    // The released window had item counts.
    accelerator.backward(model(input(x)).sum());
    optimizer.step();
    syncs.push_back(accelerator.sync_gradients());
  }
  EXPECT_THAT(syncs, ::testing::ElementsAre(false, false, true));
  EXPECT_DOUBLE_EQ(weight_of(net), -3);
}

TEST(FreeMemory, MakesEarlierHandlesErrors) {
  const Accelerator accelerator({.world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::StepLR step_lr(sgd, 1, 0.5);
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(
      net, sgd, step_lr, DataLoader(TensorDataset{torch::arange(2)}));
  torch::Tensor large = torch::ones({3});
  accelerator.free_memory(large);
  EXPECT_FALSE(large.defined());
  const auto expect_released = [](auto&& use) {
    expect_error<ConfigError>(
        use, "released by free_memory() or end_training()");
  };
  expect_released([&, &model = model] { model(input(1)); });
  expect_released(
      [&, &model = model] { auto scope = accelerator.accumulate(model); });
  expect_released(
      [&, &model = model] { auto scope = accelerator.no_sync(model); });
  expect_released([&optimizer = optimizer] { optimizer.step(); });
  expect_released([&optimizer = optimizer] { optimizer.zero_grad(); });
  expect_released([&scheduler = scheduler] { scheduler.step(); });
  expect_released([&loader = loader] { loader.begin(); });
  auto again = accelerator.prepare(net);
  EXPECT_EQ(again(input(1)).item<double>(), 0);
}

TEST(Backward, TakesTheVectorOfALossThatIsNoScalar) {
  const Accelerator accelerator({.world = alone()});
  auto net = one_weight();
  auto model = accelerator.prepare(net);
  const auto loss = [&] {
    return model(torch::tensor({{1.}, {2.}}, at::kFloat));
  };
  accelerator.backward(
      loss(), {.gradient = torch::tensor({{10.}, {100.}}, at::kFloat)});
  EXPECT_EQ(net->weight.grad().item<double>(), 210);
  expect_error<ConfigError>(
      [&] { accelerator.backward(loss()); }, "must be one number, but has 2");
  expect_error<ConfigError>(
      [&] { accelerator.backward(loss(), {.gradient = torch::ones({2})}); },
      "but have [2, 1] and [2]");
}

TEST(Backward, RefusesALossWithoutAGraph) {
  const Accelerator accelerator({.world = alone()});
  auto net = one_weight();
  auto model = accelerator.prepare(net);
  const auto refuse = [&](const at::Tensor& loss) {
    expect_error<ConfigError>(
        [&] { accelerator.backward(loss); }, "must have a graph, but has none");
  };
  refuse(model(input(1)).sum().detach());
  {
    const torch::NoGradGuard no_grad;
    refuse(model(input(1)).sum());
  }
  net->weight.requires_grad_(false);
  refuse(model(input(1)).sum());
}

TEST(Backward, GivesGradientsToTheNamedInputsOnly) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto first = one_weight(), second = one_weight();
    auto [model_1, model_2] = accelerator.prepare(first, second);
    const double x = accelerator.process_index() + 1.0;
    const auto loss = model_1(input(x)).sum() + model_2(input(x)).sum();
    accelerator.backward(loss, {.inputs = {first->weight}});
    EXPECT_EQ(first->weight.grad().item<double>(), 1.5);
    EXPECT_FALSE(second->weight.grad().defined());
  });
}

TEST(Backward, IsAveragedWhereverTheForwardRan) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto net = one_weight();
    auto model = accelerator.prepare(net);
    const double x = accelerator.process_index() + 1.0;
    torch::Tensor loss;
    {
      auto scope = accelerator.no_sync(model);
      loss = model(input(x)).sum();
    }
    accelerator.backward(loss);
    EXPECT_EQ(net->weight.grad().item<double>(), 1.5);
  });
}

TEST(EvaluationMode, SendsNothingAndKeepsEachRanksWeights) {
  for (const bool is_sharded : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options{.world = world};
      if (is_sharded) options.parallel.shard = 2;
      const Accelerator accelerator(options);
      auto net = one_weight();
      const double own = accelerator.process_index() + 1.0;
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(own);
      }
      auto model =
          accelerator.prepare(with_options(net, {.evaluation_mode = true}));
      EXPECT_EQ(model(input(10)).item<double>(), 10 * own);
      accelerator.backward(model(input(own)).sum());
      EXPECT_EQ(net->weight.grad().item<double>(), own);
      auto other = one_weight();
      expect_error<ConfigError>(
          [&] {
            accelerator.prepare(with_options(
                other, {.evaluation_mode = true, .master_weights = true}));
          },
          "evaluation_mode prepares a model that is neither replicated");
    });
  }
}

TEST(PrepareOne, GivesTheSameHandlesAsPrepare) {
  const Accelerator accelerator({.world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::StepLR step_lr(sgd, 1, 0.5);
  const Model<torch::nn::LinearImpl> model = accelerator.prepare(net);
  const Optimizer optimizer = accelerator.prepare(sgd);
  const Scheduler scheduler = accelerator.prepare(step_lr);
  accelerator.backward(model(input(2)).sum());
  optimizer.step();
  scheduler.step();
  EXPECT_EQ(weight_of(net), -2);
  EXPECT_EQ(&optimizer.inner(), &sgd);
  EXPECT_EQ(&scheduler.inner(), &step_lr);
}

TEST(UnscaleGradients, TakesAListOfOptimizers) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::fp16,
       .autocast = {.enabled = false},
       .grad_scaler = {.init_scale = 8},
       .world = alone()});
  auto first = one_weight(), second = one_weight(), third = one_weight();
  torch::optim::SGD sgd_1(first->parameters(), 1.0),
      sgd_2(second->parameters(), 1.0), sgd_3(third->parameters(), 1.0);
  auto [model_1, model_2, model_3, optimizer_1, optimizer_2, optimizer_3] =
      accelerator.prepare(first, second, third, sgd_1, sgd_2, sgd_3);
  accelerator.backward(
      (model_1(input(1)) + model_2(input(2)) + model_3(input(3))).sum());
  accelerator.unscale_gradients({optimizer_1, optimizer_2});
  EXPECT_EQ(first->weight.grad().item<double>(), 1);
  EXPECT_EQ(second->weight.grad().item<double>(), 2);
  EXPECT_EQ(third->weight.grad().item<double>(), 24);
}

TEST(Print, WritesOnceOnEachNode) {
  ::testing::internal::CaptureStdout();
  run_on_ranks(4, [](WorldOptions world) {
    world.local_rank = *world.rank % 2;
    world.local_size = 2;
    const Accelerator accelerator({.world = world});
    accelerator.print("from rank " + std::to_string(*world.rank));
  });
  const std::string output = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(output, ::testing::HasSubstr("from rank 0\n"));
  EXPECT_THAT(output, ::testing::HasSubstr("from rank 2\n"));
  EXPECT_THAT(output, ::testing::Not(::testing::HasSubstr("from rank 1")));
  EXPECT_THAT(output, ::testing::Not(::testing::HasSubstr("from rank 3")));
}

}  // namespace gradient_state_test
}  // namespace accelerate
