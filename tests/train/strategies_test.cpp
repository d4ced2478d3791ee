// Notifications from the accelerator to the strategies of its models.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/recording_strategy.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "train/session/session.h"

namespace accelerate {
namespace strategies_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::RecordingStrategy;
using testing::run_on_ranks;

using Names = std::vector<std::string>;

const WorldOptions kAlone{.rank = 0, .size = 1, .device = at::kCPU};

// Two prepared models with two strategies each. An optimizer that steps inside
// the backward trains the first model.
struct TwoModels {
  TwoModels() {
    for (const auto& [model, name] :
         {std::pair{&first, "first"}, std::pair{&second, "second"}}) {
      for (const char* strategy : {"a", "b"}) {
        const std::string full = std::string(name) + "." + strategy;
        auto made = std::make_unique<RecordingStrategy>(full, events);
        strategies.push_back(made.get());
        model->prepared()->strategies.add(strategy, std::move(made));
      }
    }
  }

  at::Tensor loss() const {
    const at::Tensor x = torch::ones({1, 2});
    return first(x).sum() + second(x).sum();
  }
  Names take_events() const { return std::exchange(*events, {}); }

  testing::Events events = std::make_shared<Names>();
  std::vector<RecordingStrategy*> strategies;
  Accelerator accelerator{{.world = kAlone}};
  torch::nn::Linear net{torch::nn::LinearOptions(2, 1).bias(false)};
  torch::nn::Linear other{torch::nn::LinearOptions(2, 1).bias(false)};
  optim::Lomo lomo{net->parameters()};
  std::tuple<
      Model<torch::nn::LinearImpl>,
      Model<torch::nn::LinearImpl>,
      Optimizer>
      prepared = accelerator.prepare(net, other, lomo);
  Model<torch::nn::LinearImpl>& first = std::get<0>(prepared);
  Model<torch::nn::LinearImpl>& second = std::get<1>(prepared);
};

TEST(StrategyEvents, EndABackwardInReverseForEveryOptimizer) {
  const Names begins{
      "first.a:before_backward",
      "first.b:before_backward",
      "second.a:before_backward",
      "second.b:before_backward"};
  const Names ends{
      "first.b:after_backward",
      "first.a:after_backward",
      "second.b:after_backward",
      "second.a:after_backward"};
  TwoModels models;
  at::Tensor loss = models.loss();
  models.take_events();
  models.accelerator.backward(loss);
  Names expected = begins;
  expected.insert(expected.end(), ends.begin(), ends.end());
  EXPECT_EQ(models.take_events(), expected);

  loss = models.loss();
  models.take_events();
  models.accelerator.lomo_backward(loss, 0.1);
  expected = begins;
  expected.insert(
      expected.end(), {"first.a:average_gradient", "first.b:average_gradient"});
  expected.insert(expected.end(), ends.begin(), ends.end());
  // The backward is also a step of the model whose parameters it updates.
  expected.insert(expected.end(), {"first.a:after_step", "first.b:after_step"});
  EXPECT_EQ(models.take_events(), expected);
}

TEST(StrategyEvents, ReportAFailedBackwardToAllStrategies) {
  const auto failures_in = [](const Names& events) {
    Names failures;
    for (const std::string& event : events) {
      if (event.ends_with(":on_failure")) failures.push_back(event);
    }
    return failures;
  };
  const auto all = ElementsAre(
      "first.b:on_failure",
      "first.a:on_failure",
      "second.b:on_failure",
      "second.a:on_failure");
  for (const bool is_fused : {false, true}) {
    TwoModels models;
    const auto backward = [&] {
      const at::Tensor loss = models.loss();
      models.take_events();
      if (is_fused) {
        models.accelerator.lomo_backward(loss, 0.1);
      } else {
        models.accelerator.backward(loss);
      }
    };
    for (const char* event : {"before_backward", "after_backward"}) {
      models.strategies[3]->fails_in = event;
      expect_error<std::runtime_error>(backward, "second.b");
      EXPECT_THAT(failures_in(models.take_events()), all);
    }
    models.strategies[3]->fails_in = "";
    // Autograd itself throws, because the graph has been freed.
    const at::Tensor used = models.loss();
    used.backward();
    const auto fail = [&] {
      if (is_fused) {
        models.accelerator.lomo_backward(used, 0.1);
      } else {
        models.accelerator.backward(used);
      }
    };
    models.take_events();
    expect_error<c10::Error>(fail, "a second time");
    EXPECT_THAT(failures_in(models.take_events()), all);
    models.strategies[0]->explains_failures = true;
    models.strategies[2]->explains_failures = true;
    expect_error<std::runtime_error>(fail, "first.a knows why");
    EXPECT_THAT(failures_in(models.take_events()), all);
  }
}

TEST(StrategyEvents, ReportAFailedForwardToTheStrategiesThatBeganIt) {
  TwoModels models;
  models.strategies[1]->fails_in = "before_forward";
  expect_error<std::runtime_error>(
      [&] { models.first(torch::ones({1, 2})); }, "first.b");
  EXPECT_THAT(
      models.take_events(),
      ElementsAre(
          "first.a:before_forward",
          "first.b:before_forward",
          "first.b:on_failure",
          "first.a:on_failure"));
}

TEST(StrategyEvents, ReportAStepToTheModelsItChangesOnly) {
  TwoModels models;
  torch::optim::SGD sgd(models.other->parameters(), 0.1);
  auto optimizer = models.accelerator.prepare(sgd);
  models.accelerator.backward(models.loss());
  models.take_events();
  optimizer.step();
  EXPECT_THAT(
      models.take_events(),
      ElementsAre(
          "first.a:before_step",
          "first.b:before_step",
          "second.a:before_step",
          "second.b:before_step",
          "second.a:after_step",
          "second.b:after_step"));
}

// A model whose optimizer is not prepared yet keeps its values when another
// model's optimizer steps.
TEST(MasterWeights, AreCopiedOnlyAfterTheirOwnOptimizersStep) {
  const Accelerator accelerator({.master_weights = true, .world = kAlone});
  torch::nn::Linear net(2, 1), later(64, 64);
  net->to(at::kBFloat16);
  later->to(at::kBFloat16);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto unprepared = accelerator.prepare(later);
  const at::Tensor before = later->weight.detach().clone();
  accelerator.backward(
      model(torch::ones({1, 2}, at::kBFloat16)).sum().to(at::kFloat));
  optimizer.step();
  EXPECT_TRUE(torch::equal(later->weight, before));
}

// A single matrix, so that compression loses something in every step.
struct Compressed {
  Compressed(
      const WorldOptions& world,
      CommHook hook,
      bool master_weights,
      const LogSink& sink = nullptr)
      : accelerator(options(world, hook, master_weights, sink)) {
    const torch::NoGradGuard no_grad;
    net->weight.copy_(
        torch::sin(torch::arange(48, torch::kFloat)).view({6, 8}));
  }

  static AcceleratorOptions options(
      const WorldOptions& world,
      CommHook hook,
      bool master_weights,
      const LogSink& sink) {
    AcceleratorOptions options{
        .master_weights = master_weights,
        .parallel =
            {.replicate_options =
                 {.comm_hook = hook,
                  .power_sgd =
                      {.start_power_sgd_iter = 1, .min_compression_rate = 1}}},
        .world = world};
    if (sink) options.world.logger = Logger(sink, LogLevel::warning);
    return options;
  }

  void train(int first_step, int num_steps) {
    for (int step = first_step; step < first_step + num_steps; ++step) {
      const auto x = torch::cos(
          torch::arange(32, torch::kFloat).view({4, 8}) +
          (10 * step + accelerator.process_index()));
      optimizer.zero_grad();
      accelerator.backward(torch::tanh(model(x)).square().sum());
      optimizer.step();
    }
  }

  [[nodiscard]] StateDict state() const {
    return model.prepared()->strategies.state_dict();
  }

  Accelerator accelerator;
  torch::nn::Linear net{torch::nn::LinearOptions(8, 6).bias(false)};
  torch::optim::SGD sgd{net->parameters(), 0.1};
  std::tuple<Model<torch::nn::LinearImpl>, Optimizer> prepared =
      accelerator.prepare(net, sgd);
  Model<torch::nn::LinearImpl>& model = std::get<0>(prepared);
  Optimizer& optimizer = std::get<1>(prepared);
};

TEST(StrategyState, LoadsAlongsideTechniquesAddedSinceTheSave) {
  const testing::TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Compressed through(world, CommHook::power_sgd, false);
    through.train(0, 3);
    static_cast<void>(through.accelerator.save_state(directory / "out"));
    const StateDict saved = through.state().get<StateDict>("replicate");
    EXPECT_GT(
        saved.get<StateDict>("errors")
            .get<at::Tensor>("weight")
            .abs()
            .max()
            .item<double>(),
        0);

    Compressed resumed(world, CommHook::power_sgd, true);
    EXPECT_THAT(
        resumed.model.prepared()->strategies.names(),
        ElementsAre("master_weights", "replicate"));
    resumed.accelerator.load_state(directory / "out");
    const StateDict loaded = resumed.state().get<StateDict>("replicate");
    EXPECT_EQ(loaded.get<std::int64_t>("iteration"), 3);
    for (const char* key : {"errors", "factors"}) {
      EXPECT_TRUE(torch::equal(
          loaded.get<StateDict>(key).get<at::Tensor>("weight"),
          saved.get<StateDict>(key).get<at::Tensor>("weight")))
          << key;
    }
    through.train(3, 3);
    resumed.train(3, 3);
    EXPECT_TRUE(torch::equal(resumed.net->weight, through.net->weight));
  });
}

TEST(StrategyState, IsReportedIfNoStrategyLoadsIt) {
  const testing::TemporaryDirectory directory;
  std::string logged;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Compressed training(world, CommHook::power_sgd, false);
    training.train(0, 2);
    static_cast<void>(training.accelerator.save_state(directory / "out"));
    const LogSink sink = [&, rank = *world.rank](const LogRecord& record) {
      if (rank == 0) logged += std::string(record.message);
    };
    Compressed plain(world, CommHook::none, false, sink);
    plain.accelerator.load_state(directory / "out");
    EXPECT_TRUE(torch::equal(plain.net->weight, training.net->weight));
  });
  EXPECT_THAT(
      logged,
      HasSubstr("the state of \"replicate\" that was saved with model 0"));
}

}  // namespace strategies_test
}  // namespace accelerate
