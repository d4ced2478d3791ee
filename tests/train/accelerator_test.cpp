#include <accelerate/accelerate.h>

#include <atomic>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace accelerator_test {

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

TEST(Accelerator, ReturnsHandlesInTheOrderGiven) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(2, 3);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  torch::optim::StepLR step_lr(sgd, 1, 0.1);
  auto [scheduler, loader, model, optimizer] = accelerator.prepare(
      step_lr,
      DataLoader(TensorDataset{torch::ones({4, 2})}, {.batch_size = 2}),
      net,
      sgd);
  EXPECT_EQ(&scheduler.inner(), &step_lr);
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(model.module(), net.ptr());
  EXPECT_EQ(model->weight.size(0), 3);
  EXPECT_EQ(&optimizer.inner(), &sgd);
}

TEST(Accelerator, AveragesAWindowAndStepsAtItsEndOnly) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .world = alone()});
  auto net = one_weight();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::StepLR step_lr(sgd, 1, 0.5);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
  std::vector<double> weights, rates;
  for (const double x : {1.0, 3.0, 5.0, 7.0}) {
    auto micro_step = accelerator.accumulate(model);
    optimizer.zero_grad();
    accelerator.backward(model(torch::full({1, 1}, x)).sum());
    optimizer.step();
    scheduler.step();
    weights.push_back(weight_of(net));
    rates.push_back(sgd.param_groups()[0].options().get_lr());
  }
  EXPECT_THAT(weights, ::testing::ElementsAre(0, -2, -2, -8));
  // LibTorch's StepLR keeps the rate at the first of its two steps.
  EXPECT_THAT(rates, ::testing::ElementsAre(1, 1, 1, 0.5));
}

TEST(Accelerator, AllowsZeroGradFirstOrLast) {
  const auto run = [](bool first) {
    const Accelerator accelerator(
        {.gradient_accumulation_steps = 3, .world = alone()});
    auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 1; i <= 6; ++i) {
      auto micro_step = accelerator.accumulate(model);
      if (first) optimizer.zero_grad();
      accelerator.backward(
          model(torch::full({1, 1}, static_cast<double>(i))).sum());
      optimizer.step();
      if (!first) optimizer.zero_grad();
    }
    return weight_of(net);
  };
  EXPECT_DOUBLE_EQ(run(true), -7);
  EXPECT_DOUBLE_EQ(run(false), -7);
}

TEST(Accelerator, EndsAWindowWithTheLoader) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .world = alone()});
  auto net = one_weight();
  auto [model, loader] = accelerator.prepare(
      net, DataLoader(TensorDataset{torch::ones({3, 1})}, {.batch_size = 1}));
  std::vector<bool> syncs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      static_cast<void>(batch);
      auto micro_step = accelerator.accumulate(model);
      syncs.push_back(accelerator.sync_gradients());
    }
  }
  EXPECT_THAT(
      syncs, ::testing::ElementsAre(false, true, true, false, true, true));
}

TEST(Accelerator, ComputesInBf16AndReturnsFp32) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::bf16, .world = alone()});
  torch::nn::Linear net(4, 4);
  auto model = accelerator.prepare(net);
  at::ScalarType inside = at::kFloat;
  const auto output = model.call([&](torch::nn::LinearImpl& linear) {
    auto y = linear.forward(torch::ones({2, 4}));
    inside = y.scalar_type();
    return std::pair(y, std::vector<at::Tensor>{y});
  });
  EXPECT_EQ(inside, at::kBFloat16);
  EXPECT_EQ(output.first.scalar_type(), at::kFloat);
  EXPECT_EQ(output.second[0].scalar_type(), at::kFloat);
  EXPECT_EQ(net->forward(torch::ones({2, 4})).scalar_type(), at::kFloat);
}

// 1/1024 is less than half a bf16 step at 1.
TEST(Accelerator, KeepsMasterWeightsOnRequest) {
  for (const bool keeps : {false, true}) {
    const Accelerator accelerator({.master_weights = keeps, .world = alone()});
    auto net = one_weight();
    torch::nn::init::ones_(net->weight);
    net->to(torch::kBFloat16);
    torch::optim::SGD sgd(net->parameters(), 1.0 / 1024);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 64; ++step) {
      accelerator.backward(model(torch::ones({1, 1}, torch::kBFloat16)).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(weight_of(net), keeps ? 1 - 64.0 / 1024 : 1);
  }
}

TEST(Accelerator, ClosesAutocastWhenTheForwardThrows) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::bf16, .world = alone()});
  torch::nn::Linear net(4, 4);
  auto model = accelerator.prepare(net);
  expect_error<std::runtime_error>(
      [&] {
        model.call(
            [](torch::nn::LinearImpl&) { throw std::runtime_error("mine"); });
      },
      "mine");
  EXPECT_EQ(
      torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(),
      at::kFloat);
}

TEST(Accelerator, ReportsAllComplaintsAtOnce) {
  const auto build = [] {
    Accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = MSAMPRecipeKwargs{"O3"},
         .gradient_accumulation_steps = 0,
         .parallel = {.shard = 3},
         .world = alone()});
  };
  expect_error<ConfigError>(build, "fp8_opt_level is \"O3\"");
  expect_error<ConfigError>(
      build, "gradient_accumulation_steps must be at least 1, but is 0");
  expect_error<ConfigError>(build, "shard (3) = 3 ranks");
}

TEST(Accelerator, RefusesTheSameThingTwice) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(1, 1);
  auto model = accelerator.prepare(net);
  expect_error<ConfigError>(
      [&] { accelerator.prepare(net); },
      "must not be repeated or already prepared");
  const std::shared_ptr<torch::nn::LinearImpl> empty;
  expect_error<ConfigError>(
      [&] { accelerator.prepare(empty); },
      "must be a module, but is an empty holder");
  expect_error<ConfigError>(
      [&] { accelerator.backward(at::Tensor()); },
      "the loss of backward() must be defined");
}

TEST(Accelerator, SaysWhichArgumentOfPrepareIsEmpty) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(1, 1);
  torch::nn::Linear empty{nullptr};
  torch::optim::SGD sgd(net->parameters(), 0.1);
  expect_error<ConfigError>(
      [&] { accelerator.prepare(empty); },
      "argument 1 of prepare() must be a module, but is an empty holder");
  const std::shared_ptr<torch::nn::LinearImpl> null;
  try {
    accelerator.prepare(net, sgd, with_options(empty, {}), null);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::AllOf(
            ::testing::HasSubstr("argument 3 of prepare() must be a module"),
            ::testing::HasSubstr("argument 4 of prepare() must be a module"),
            ::testing::Not(::testing::HasSubstr("twice"))));
  }
  expect_error<ConfigError>(
      [&] { accelerator.prepare(net, std::unique_ptr<torch::optim::SGD>()); },
      "argument 2 of prepare() is an empty pointer to an optimizer");
  expect_error<ConfigError>(
      [&] { static_cast<void>(accelerator.prepare(empty)); },
      "argument 1 of prepare() must be a module, but is an empty holder");
  // The failed call prepared nothing.
  EXPECT_NO_THROW(accelerator.prepare(net, sgd));
}

TEST(Accelerator, GathersMetricsWithoutTheRepeatedSamples) {
  for (const int num_ranks : {1, 2, 3}) {
    std::vector<std::vector<std::int64_t>> seen(
        static_cast<std::size_t>(num_ranks));
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      auto loader = accelerator.prepare(
          DataLoader(TensorDataset{torch::arange(10)}, {.batch_size = 3}));
      for (auto& [x] : loader) {
        const auto all = accelerator.gather_for_metrics(x);
        for (std::int64_t i = 0; i < all.size(0); ++i) {
          seen[static_cast<std::size_t>(accelerator.process_index())].push_back(
              all[i].item<std::int64_t>());
        }
      }
    });
    for (const auto& of_rank : seen) {
      EXPECT_THAT(of_rank, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
          << num_ranks;
    }
  }
}

TEST(Accelerator, DoesNotAverageInsideNoSync) {
  std::vector<double> gradients(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto net = one_weight();
    auto model = accelerator.prepare(net);
    const double own = accelerator.process_index() + 1;
    {
      auto scope = accelerator.no_sync(model);
      accelerator.backward(model(torch::full({1, 1}, own)).sum());
    }
    EXPECT_EQ(net->weight.grad().item<double>(), own);
    accelerator.backward(model(torch::full({1, 1}, own)).sum());
    gradients[static_cast<std::size_t>(accelerator.process_index())] =
        net->weight.grad().item<double>();
  });
  // The local gradients, 1 and 2, are averaged with the rest.
  EXPECT_THAT(gradients, ::testing::ElementsAre(3, 3));
}

TEST(Accelerator, LetsTheMainProcessGoFirst) {
  std::atomic<int> order = 0;
  std::vector<int> places(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    accelerator.main_process_first([&] {
      places[static_cast<std::size_t>(accelerator.process_index())] = order++;
    });
  });
  EXPECT_EQ(places[0], 0);
  const auto fail = [] {
    run_on_ranks(2, [](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      accelerator.main_process_first([&] {
        if (accelerator.is_main_process()) throw std::runtime_error("no disk");
      });
    });
  };
  expect_error<std::runtime_error>(fail, "no disk");
}

TEST(Accelerator, RunsFunctionsOnOneRankOnly) {
  std::vector<std::string> ran(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    std::string& mine =
        ran[static_cast<std::size_t>(accelerator.process_index())];
    accelerator.on_main_process([&] { mine += "main "; });
    accelerator.world().on_last_process([&] { mine += "last "; });
    accelerator.world().on_process(1, [&] { mine += "one "; });
    accelerator.world().on_local_main_process([&] { mine += "local "; });
    expect_error<ConfigError>(
        [&] { accelerator.world().on_process(3, [] {}); }, "rank 3 of 3");
  });
  EXPECT_THAT(ran, ::testing::ElementsAre("main local ", "one ", "last "));
}

TEST(Accelerator, LetsTheFirstRankOfEachMachineGoFirst) {
  std::atomic<int> order = 0;
  std::vector<int> places(4);
  run_on_ranks(4, [&](WorldOptions world) {
    world.local_rank = *world.rank % 2;
    world.local_size = 2;
    const Accelerator accelerator({.world = world});
    for (int again = 0; again < 2; ++again) {
      accelerator.world().local_main_process_first([&] {
        places[static_cast<std::size_t>(accelerator.process_index())] = order++;
      });
    }
  });
  EXPECT_LT(places[0], places[1]);
  EXPECT_LT(places[2], places[3]);
}

TEST(Accelerator, SplitsListsAndTensors) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const bool is_first = accelerator.is_main_process();
    const std::vector<int> items{1, 2, 3};
    EXPECT_EQ(
        accelerator.split_between_processes(items),
        is_first ? (std::vector<int>{1, 2}) : std::vector<int>{3});
    EXPECT_EQ(
        accelerator.split_between_processes(items, true),
        is_first ? (std::vector<int>{1, 2}) : (std::vector<int>{3, 3}));
    EXPECT_EQ(
        accelerator.split_between_processes(torch::arange(5)).size(0),
        is_first ? 3 : 2);
  });
}

TEST(Accelerator, ClipsTheNormOfTheAveragedGradient) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
    auto model = accelerator.prepare(net);
    // Ranks have (2, 4) and (4, 4): the mean is (3, 4).
    const double first = accelerator.is_main_process() ? 2 : 4;
    accelerator.backward(
        model(torch::tensor({{first, 4.0}}, at::kFloat)).sum());
    EXPECT_EQ(accelerator.clip_grad_norm_(model, 1.0).item<double>(), 5);
    EXPECT_TRUE(
        torch::allclose(net->weight.grad(), torch::tensor({{0.6f, 0.8f}})));
    EXPECT_NEAR(
        accelerator.clip_grad_norm_(model, 10.0).item<double>(), 1, 1e-6);
    accelerator.clip_grad_value_(model, 0.7);
    EXPECT_TRUE(
        torch::allclose(net->weight.grad(), torch::tensor({{0.6f, 0.7f}})));
    net->weight.mutable_grad().fill_(NAN);
    expect_error<ConfigError>(
        [&] {
          accelerator.clip_grad_norm_(model, 1.0, {.error_if_nonfinite = true});
        },
        "the gradient norm must be finite, but is nan");
  });
}

TEST(Accelerator, ForgetsAndPreparesAgain) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto net = one_weight();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.free_memory();
    expect_error<ConfigError>(
        [&, &stale = optimizer] { stale.step(); }, "released");
    auto [again, optimizer_again] = accelerator.prepare(net, sgd);
    accelerator.backward(
        again(torch::full({1, 1}, accelerator.process_index() + 1.0)).sum());
    optimizer_again.step();
    EXPECT_EQ(weight_of(net), -1.5);
    accelerator.finish();
    EXPECT_EQ(accelerator.unwrap_model(again), net.ptr());
  });
}

TEST(Accelerator, ExplainsSettingsGivenInCode) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 3, .world = alone()});
  EXPECT_THAT(
      accelerator.explain_settings(),
      ::testing::HasSubstr("gradient_accumulation_steps = 3  (code)"));
}

TEST(Accelerator, ChecksTheTriggerOfAnyRankOnce) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    EXPECT_FALSE(accelerator.check_trigger());
    if (accelerator.process_index() == 1) accelerator.set_trigger();
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(Accelerator, GivesEveryRankTheSameShuffledOrder) {
  std::vector<std::vector<std::int64_t>> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(
        TensorDataset{torch::arange(8)}, {.batch_size = 2, .shuffle = true}));
    for (auto& [x] : loader) {
      auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
      mine.push_back(x[0].item<std::int64_t>());
      mine.push_back(x[1].item<std::int64_t>());
    }
  });
  std::vector<std::int64_t> all = seen[0];
  all.insert(all.end(), seen[1].begin(), seen[1].end());
  EXPECT_THAT(all, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace accelerator_test
}  // namespace accelerate
