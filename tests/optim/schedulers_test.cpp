#include <accelerate/accelerate.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/expect_error.h"

namespace accelerate {
namespace schedulers_test {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::Pointwise;

// An SGD optimizer with one parameter and learning rate 1.
struct Fixture {
  torch::Tensor parameter = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD sgd{
      std::vector<torch::Tensor>{parameter},
      torch::optim::SGDOptions(1)};

  std::vector<double> rates(optim::LRScheduler& schedule, int steps) {
    std::vector<double> out{schedule.get_last_lr()[0]};
    for (int i = 0; i < steps; ++i) {
      schedule.step();
      out.push_back(sgd.param_groups()[0].options().get_lr());
    }
    return out;
  }
};

std::vector<double> factors(const optim::LRLambda& f, int steps) {
  std::vector<double> out;
  for (int i = 0; i <= steps; ++i) out.push_back(f(i));
  return out;
}

TEST(Schedulers, AreWrittenAsOneExpression) {
  Fixture f;
  optim::SequentialLR schedule(
      f.sgd,
      {2},
      optim::LinearLR({.start_factor = 0.5, .total_iters = 2}),
      optim::ExponentialLR(0.5));
  EXPECT_THAT(
      f.rates(schedule, 4),
      Pointwise(DoubleNear(1e-12), {0.5, 0.75, 1.0, 0.5, 0.25}));
}

TEST(Schedulers, MultiplyByAFunction) {
  Fixture f;
  optim::MultiplicativeLR schedule(
      f.sgd, [](std::int64_t step) { return step == 2 ? 0.5 : 1.0; });
  EXPECT_THAT(f.rates(schedule, 3), ElementsAre(1, 1, 0.5, 0.5));
}

TEST(Schedulers, WarmUpAsInTransformers) {
  EXPECT_THAT(
      factors(optim::constant_with_warmup(2), 4), ElementsAre(0, 0.5, 1, 1, 1));
  EXPECT_THAT(
      factors(optim::linear_with_warmup(2, 6), 7),
      ElementsAre(0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0));
  EXPECT_THAT(
      factors(optim::cosine_with_warmup(0, 4), 4),
      Pointwise(
          DoubleNear(1e-12),
          {1.0, (1 + M_SQRT1_2) / 2, 0.5, (1 - M_SQRT1_2) / 2, 0.0}));
  EXPECT_THAT(
      factors(optim::cosine_with_restarts_and_warmup(0, 4, 2), 4),
      Pointwise(DoubleNear(1e-12), {1.0, 0.5, 1.0, 0.5, 0.0}));
  EXPECT_THAT(
      factors(
          optim::polynomial_with_warmup(
              {.num_training_steps = 4,
               .lr_init = 1,
               .lr_end = 0.2,
               .power = 2}),
          5),
      Pointwise(DoubleNear(1e-12), {1.0, 0.65, 0.4, 0.25, 0.2, 0.2}));
  EXPECT_THAT(
      factors(optim::inverse_sqrt_with_warmup(4), 16),
      ::testing::Contains(DoubleNear(0.5, 1e-12))
          .Times(2));  // at steps 2 and 16
  EXPECT_THAT(
      factors(
          optim::warmup_stable_decay(
              {.num_warmup_steps = 2,
               .num_stable_steps = 2,
               .num_decay_steps = 2,
               .decay_type = optim::RampShape::linear,
               .min_lr_ratio = 0.2}),
          7),
      Pointwise(DoubleNear(1e-12), {0.2, 0.6, 1.0, 1.0, 1.0, 0.6, 0.2, 0.2}));
}

TEST(Schedulers, TakeAFunctionForEachGroup) {
  Fixture f;
  f.sgd.add_param_group(
      {{torch::zeros({1}, torch::requires_grad())},
       std::make_unique<torch::optim::SGDOptions>(2.0)});
  optim::LambdaLR schedule(
      f.sgd,
      {[](std::int64_t) { return 0.5; },
       [](std::int64_t step) { return 1.0 + double(step); }});
  schedule.step();
  EXPECT_THAT(schedule.get_last_lr(), ElementsAre(0.5, 4));
}

TEST(Schedulers, CycleTheMomentumOfACustomOptimizerThroughAFunction) {
  Fixture f;
  double momentum = 0;
  optim::CyclicLR schedule(
      f.sgd,
      {.base_lr = {0.1},
       .max_lr = {1},
       .step_size_up = 2,
       .set_momentum = [&](auto&, double value) { momentum = value; }});
  EXPECT_DOUBLE_EQ(momentum, 0.9);
  f.rates(schedule, 2);
  EXPECT_DOUBLE_EQ(momentum, 0.8);
}

// The momentum before each of the steps and after the last.
std::vector<double> momenta(optim::LRScheduler&& schedule, int steps) {
  Fixture f;
  schedule.bind(f.sgd);
  const auto& options = static_cast<const torch::optim::SGDOptions&>(
      f.sgd.param_groups()[0].options());
  std::vector<double> out{options.momentum()};
  for (int i = 0; i < steps; ++i) {
    schedule.step();
    out.push_back(options.momentum());
  }
  return out;
}

TEST(Schedulers, CycleTheMomentumBetweenItsBoundsUnlessToldNotTo) {
  optim::CyclicLROptions cyclic{
      .base_lr = {0.1},
      .max_lr = {1},
      .step_size_up = 2,
      .base_momentum = 0.5,
      .max_momentum = 0.7};
  optim::OneCycleLROptions one_cycle{
      .max_lr = {1},
      .total_steps = 5,
      .pct_start = 0.4,
      .anneal_strategy = optim::AnnealStrategy::linear,
      .base_momentum = 0.5,
      .max_momentum = 0.8};
  EXPECT_THAT(
      momenta(optim::CyclicLR(cyclic), 3),
      Pointwise(DoubleNear(1e-12), {0.7, 0.6, 0.5, 0.6}));
  EXPECT_THAT(
      momenta(optim::OneCycleLR(one_cycle), 4),
      Pointwise(DoubleNear(1e-12), {0.8, 0.5, 0.6, 0.7, 0.8}));
  std::vector<double> given;
  one_cycle.set_momentum = [&](auto&, double value) { given.push_back(value); };
  EXPECT_THAT(momenta(optim::OneCycleLR(one_cycle), 2), ElementsAre(0, 0, 0));
  EXPECT_THAT(given, Pointwise(DoubleNear(1e-12), {0.8, 0.5, 0.6}));
  given.clear();
  cyclic.cycle_momentum = one_cycle.cycle_momentum = false;
  EXPECT_THAT(momenta(optim::CyclicLR(cyclic), 3), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(momenta(optim::OneCycleLR(one_cycle), 2), ElementsAre(0, 0, 0));
  EXPECT_THAT(given, ElementsAre());
}

TEST(Schedulers, ScaleCyclesByAFunctionOfTheirNumberOrOfTheStep) {
  for (const bool by_step : {false, true}) {
    Fixture f;
    optim::CyclicLR schedule(
        f.sgd,
        {.base_lr = {0},
         .max_lr = {1},
         .step_size_up = 2,
         .mode = optim::CyclicMode::triangular2,
         .scale_fn = [](double x) { return x / 10; },
         .scale_by_step = by_step});
    // The second cycle begins at step 4.
    const std::vector<double> expected = by_step
        ? std::vector<double>{0, 0.05, 0.2, 0.15, 0, 0.25}
        : std::vector<double>{0, 0.05, 0.1, 0.05, 0, 0.1};
    EXPECT_THAT(f.rates(schedule, 5), Pointwise(DoubleNear(1e-12), expected));
  }
}

TEST(Schedulers, ShapeTheirWarmUpsAndWaves) {
  EXPECT_THAT(
      factors(
          optim::polynomial_with_warmup(
              {.num_warmup_steps = 2,
               .num_training_steps = 4,
               .lr_init = 1,
               .lr_end = 0.5}),
          4),
      Pointwise(DoubleNear(1e-12), {0.0, 0.5, 1.0, 0.75, 0.5}));
  const auto warm_up = [](optim::RampShape shape) {
    return factors(
        optim::warmup_stable_decay(
            {.num_warmup_steps = 4,
             .num_stable_steps = 1,
             .warmup_type = shape}),
        4);
  };
  EXPECT_THAT(
      warm_up(optim::RampShape::cosine),
      Pointwise(
          DoubleNear(1e-12),
          {0.0, (1 - M_SQRT1_2) / 2, 0.5, (1 + M_SQRT1_2) / 2, 1.0}));
  EXPECT_THAT(
      warm_up(optim::RampShape::one_minus_sqrt),
      Pointwise(
          DoubleNear(1e-12),
          {0.0, 1 - std::sqrt(0.75), 1 - std::sqrt(0.5), 0.5, 1.0}));
  EXPECT_THAT(
      factors(
          optim::warmup_stable_decay({.num_decay_steps = 4, .num_cycles = 1}),
          4),
      Pointwise(DoubleNear(1e-12), {1.0, 0.5, 0.0, 0.5, 0.0}));
}

TEST(Schedulers, RefuseInvalidOptions) {
  Fixture f;
  const auto refuses = [](auto&& make, const char* phrase) {
    expect_error<ConfigError>(make, phrase);
  };
  refuses([&] { optim::StepLR({.step_size = 0}); }, "step_size");
  refuses([&] { optim::LinearLR({.start_factor = 0}); }, "start_factor");
  refuses([&] { optim::ExponentialLR(0.5).step(); }, "no optimizer");
  refuses(
      [&] { optim::ExponentialLR(f.sgd, 0.5).bind(f.sgd); }, "a second one");
  refuses([&] { optim::ExponentialLR(f.sgd, 0.5).step(0.5); }, "metric");
  refuses([&] { optim::ReduceLROnPlateau(f.sgd).step(); }, "step(metric)");
  refuses(
      [&] {
        optim::SequentialLR(
            f.sgd,
            {5, 2},
            optim::ExponentialLR(1),
            optim::ExponentialLR(1),
            optim::ExponentialLR(1));
      },
      "ascending");
  refuses(
      [&] { optim::SequentialLR(f.sgd, {5}, optim::ExponentialLR(1)); },
      "one between each");
  refuses(
      [&] { optim::ChainedScheduler(f.sgd, optim::ReduceLROnPlateau()); },
      "ReduceLROnPlateau");
  refuses(
      [&] { optim::OneCycleLR(f.sgd, {.max_lr = {1, 2}, .total_steps = 5}); },
      "2 values of max_lr");
  torch::optim::Adagrad adagrad(std::vector<torch::Tensor>{f.parameter});
  refuses(
      [&] { optim::OneCycleLR(adagrad, {.max_lr = {1}, .total_steps = 5}); },
      "cycle_momentum");
  optim::OneCycleLR schedule(f.sgd, {.max_lr = {1}, .total_steps = 2});
  schedule.step();
  schedule.step();
  refuses([&] { schedule.step(); }, "total_steps");
}

// The learning rate of CosineAnnealingWarmRestarts from 1 down to 0.
double in_cycle(double position, double length) {
  return (1 + std::cos(M_PI * position / length)) / 2;
}

TEST(Schedulers, ContinueACycleWhereItWasSaved) {
  Fixture f;
  optim::CosineAnnealingWarmRestarts schedule(f.sgd, {.T_0 = 7, .T_mult = 2});
  for (int i = 0; i < 10; ++i) schedule.step();
  StateDict state = schedule.state_dict();
  EXPECT_EQ(state.get<double>("T_cur"), 3);
  EXPECT_EQ(state.get<double>("T_i"), 14);
  EXPECT_EQ(state.get<std::int64_t>("T_0"), 7);
  EXPECT_EQ(state.get<std::int64_t>("T_mult"), 2);
  EXPECT_EQ(state.get<double>("eta_min"), 0);

  // A position that the number of steps does not imply, as after PyTorch's
  // step(epoch).
  state.set("T_cur", 5.5);
  state.set("T_i", 7.0);
  Fixture g;
  optim::CosineAnnealingWarmRestarts loaded(g.sgd, {.T_0 = 7, .T_mult = 2});
  loaded.load_state_dict(state);
  EXPECT_EQ(loaded.step_count(), 10);
  EXPECT_THAT(
      g.rates(loaded, 3),
      Pointwise(
          DoubleNear(1e-12),
          {in_cycle(3, 14),
           in_cycle(6.5, 7),
           in_cycle(0.5, 14),
           in_cycle(1.5, 14)}));
  EXPECT_EQ(loaded.state_dict().get<double>("T_cur"), 1.5);

  // Without a saved position, the number of steps implies it.
  loaded.load_state_dict(
      {{"step", std::int64_t{10}},
       {"base_lrs", std::vector<double>{1}},
       {"last_lrs", std::vector<double>{1}}});
  loaded.step();
  EXPECT_NEAR(loaded.get_last_lr()[0], in_cycle(4, 14), 1e-12);
}

TEST(Schedulers, ForgetALoadedCycleWhenTheyStartOver) {
  Fixture f;
  const auto make = [&] {
    return optim::SequentialLR(
        f.sgd,
        {2},
        optim::ConstantLR({.factor = 1}),
        optim::CosineAnnealingWarmRestarts({.T_0 = 4}));
  };
  auto schedule = make();
  schedule.step();
  StateDict state = schedule.state_dict();
  auto parts = state.get<std::vector<StateDict>>("parts");
  parts[1].set("T_cur", 3.0);
  state.set("parts", parts);
  schedule.load_state_dict(state);
  EXPECT_THAT(
      f.rates(schedule, 3),
      Pointwise(DoubleNear(1e-12), {1.0, 1.0, in_cycle(1, 4), in_cycle(2, 4)}));
}

TEST(Schedulers, RefuseAPositionOutsideTheCycle) {
  Fixture f;
  optim::CosineAnnealingWarmRestarts schedule(f.sgd, {.T_0 = 4});
  schedule.step();
  const double lr = schedule.get_last_lr()[0];
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto& [position, length] :
       {std::pair(-1.0, 4.0), {0.0, 0.0}, {inf, 4.0}, {1.0, inf}}) {
    StateDict state = schedule.state_dict();
    state.set("step", std::int64_t{3});
    state.set("T_cur", position);
    state.set("T_i", length);
    expect_error<CheckpointError>(
        [&] { schedule.load_state_dict(state); },
        "CosineAnnealingWarmRestarts");
    EXPECT_EQ(schedule.step_count(), 1);
    EXPECT_EQ(schedule.get_last_lr()[0], lr);
  }
}

TEST(Schedulers, SaveTheBoundsOfOneCycle) {
  Fixture f;
  const optim::OneCycleLR schedule(
      f.sgd,
      {.max_lr = {0.5},
       .total_steps = 8,
       .base_momentum = 0.75,
       .max_momentum = 0.875,
       .div_factor = 4,
       .final_div_factor = 8});
  const StateDict state = schedule.state_dict();
  EXPECT_THAT(state.get<std::vector<double>>("max_lrs"), ElementsAre(0.5));
  EXPECT_THAT(state.get<std::vector<double>>("base_lrs"), ElementsAre(0.125));
  EXPECT_THAT(state.get<std::vector<double>>("min_lrs"), ElementsAre(0.015625));
  EXPECT_EQ(state.get<double>("max_momentum"), 0.875);
  EXPECT_EQ(state.get<double>("base_momentum"), 0.75);
  const optim::OneCycleLR without(
      f.sgd, {.max_lr = {0.5}, .total_steps = 8, .cycle_momentum = false});
  EXPECT_FALSE(without.state_dict().contains("max_momentum"));
}

TEST(Schedulers, LoadAStateCompletelyOrNotAtAll) {
  Fixture f;
  optim::ChainedScheduler schedule(
      f.sgd, optim::ExponentialLR(0.5), optim::ExponentialLR(0.5));
  schedule.step();
  const StateDict before = schedule.state_dict();
  StateDict torn = before;
  auto states = torn.get<std::vector<StateDict>>("parts");
  states[0].set("step", std::int64_t{7});
  states[1] = StateDict{};
  torn.set("parts", states);
  expect_error<CheckpointError>(
      [&] { schedule.load_state_dict(torn); }, "\"step\"");
  EXPECT_EQ(
      schedule.state_dict()
          .get<std::vector<StateDict>>("parts")[0]
          .get<std::int64_t>("step"),
      1);
  EXPECT_EQ(f.sgd.param_groups()[0].options().get_lr(), 0.25);
  optim::ExponentialLR other(f.sgd, 0.5);
  expect_error<CheckpointError>(
      [&] { other.load_state_dict({{"step", 1.5}}); }, "another type");
}

using MakeSchedule = std::function<std::unique_ptr<optim::LRScheduler>(
    torch::optim::Optimizer&)>;

template <class Schedule, class... Args>
MakeSchedule makes(Args... args) {
  return [args...](torch::optim::Optimizer& optimizer) {
    return std::make_unique<Schedule>(optimizer, args...);
  };
}

void add_group(torch::optim::SGD& sgd, double lr) {
  torch::optim::OptimizerParamGroup group(
      {torch::zeros({1}, torch::requires_grad())},
      std::make_unique<torch::optim::SGDOptions>(
          torch::optim::SGDOptions(lr).momentum(0.5)));
  sgd.add_param_group(group);
}

std::vector<double> present(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups())
    lrs.push_back(group.options().get_lr());
  return lrs;
}

// Gradual unfreezing adds groups like this.
TEST(Schedulers, TakeGroupsThatAreAddedLater) {
  const optim::LRLambda halves = [](std::int64_t step) {
    return std::pow(0.5, step);
  };
  const auto combine = [](auto combined) {
    return MakeSchedule([combined](torch::optim::Optimizer& optimizer) {
      return combined(optimizer);
    });
  };
  struct Case {
    std::string name;
    MakeSchedule make;
    /// Rates in steps 2 and 3 of a group that is added after step 1 with
    /// rate 4.
    std::vector<double> want;
  };
  const std::vector<Case> cases{
      {"LambdaLR", makes<optim::LambdaLR>(halves), {1, 0.5}},
      {"MultiplicativeLR",
       makes<optim::MultiplicativeLR>(
           optim::LRLambda([](std::int64_t) { return 0.5; })),
       {2, 1}},
      {"StepLR",
       makes<optim::StepLR>(optim::StepLROptions{.step_size = 1, .gamma = 0.5}),
       {2, 1}},
      {"MultiStepLR",
       makes<optim::MultiStepLR>(
           optim::MultiStepLROptions{.milestones = {3}, .gamma = 0.5}),
       {4, 2}},
      {"ExponentialLR", makes<optim::ExponentialLR>(0.5), {2, 1}},
      {"CyclicLR",
       makes<optim::CyclicLR>(optim::CyclicLROptions{
           .base_lr = {1},
           .max_lr = {5},
           .step_size_up = 4,
           .cycle_momentum = false}),
       {3, 4}},
      {"OneCycleLR",
       makes<optim::OneCycleLR>(optim::OneCycleLROptions{
           .max_lr = {1},
           .total_steps = 11,
           .pct_start = 10.0 / 11,
           .anneal_strategy = optim::AnnealStrategy::linear,
           .cycle_momentum = false,
           .div_factor = 10}),
       {0.3, 0.4}},
      {"SequentialLR",
       combine([](torch::optim::Optimizer& optimizer) {
         return std::make_unique<optim::SequentialLR>(
             optimizer,
             std::vector<std::int64_t>{3},
             optim::StepLR({.step_size = 1, .gamma = 0.5}),
             optim::ConstantLR({.factor = 0.25, .total_iters = 9}));
       }),
       {2, 1}},
      {"ChainedScheduler",
       combine([](torch::optim::Optimizer& optimizer) {
         return std::make_unique<optim::ChainedScheduler>(
             optimizer,
             optim::StepLR({.step_size = 1, .gamma = 0.5}),
             optim::MultiStepLR({.milestones = {3}, .gamma = 0.5}));
       }),
       {2, 0.5}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    Fixture f, other;
    const auto schedule = each.make(f.sgd);
    schedule->step();
    const std::vector<double> alone = present(f.sgd);
    add_group(f.sgd, 4);
    // A state that is saved before the next step has the group, too.
    const StateDict state = schedule->state_dict();
    EXPECT_EQ(state.get<std::vector<double>>("base_lrs").size(), 2u);
    std::vector<double> found;
    for (int step = 0; step < 2; ++step) {
      schedule->step();
      found.push_back(present(f.sgd)[1]);
      EXPECT_EQ(schedule->get_last_lr(), present(f.sgd));
    }
    EXPECT_THAT(found, Pointwise(DoubleNear(1e-12), each.want));
    const auto resumed = each.make(other.sgd);
    add_group(other.sgd, 4);
    resumed->load_state_dict(state);
    for (int step = 0; step < 2; ++step) resumed->step();
    EXPECT_EQ(present(other.sgd), present(f.sgd));
    // The group that was there does not notice.
    Fixture single;
    const auto usual = each.make(single.sgd);
    usual->step();
    EXPECT_EQ(present(single.sgd), alone);
    usual->step();
    usual->step();
    EXPECT_EQ(present(single.sgd)[0], present(f.sgd)[0]);
  }
  Fixture f;
  optim::ReduceLROnPlateau plateau(
      f.sgd, {.factor = 0.5, .patience = 0, .min_lr = {0.125}});
  plateau.step(1.0);
  add_group(f.sgd, 4);
  plateau.step(2.0);
  EXPECT_THAT(present(f.sgd), ElementsAre(0.5, 2));
}

TEST(Schedulers, NameGroupsThatTheyHaveNoValuesFor) {
  const optim::LRLambda same = [](std::int64_t) { return 1.0; };
  const std::vector<std::pair<MakeSchedule, std::string>> cases{
      {makes<optim::LambdaLR>(std::vector<optim::LRLambda>{same, same}),
       "got 2 for 3 parameter groups"},
      {makes<optim::OneCycleLR>(optim::OneCycleLROptions{
           .max_lr = {1, 2}, .total_steps = 5, .cycle_momentum = false}),
       "2 values of max_lr do not fit 3 parameter groups"},
      {makes<optim::CyclicLR>(optim::CyclicLROptions{
           .base_lr = {1, 2}, .max_lr = {3}, .cycle_momentum = false}),
       "2 values of base_lr do not fit 3 parameter groups"}};
  for (const auto& [make, phrase] : cases) {
    Fixture f;
    add_group(f.sgd, 2);
    const auto schedule = make(f.sgd);
    add_group(f.sgd, 3);
    const std::vector<double> before = present(f.sgd);
    for (int i = 0; i < 2; ++i) {
      expect_error<ConfigError>([&] { schedule->step(); }, phrase);
      EXPECT_EQ(present(f.sgd), before);
    }
  }
  Fixture f;
  add_group(f.sgd, 2);
  optim::StepLR schedule(f.sgd, {.step_size = 1, .gamma = 0.5});
  f.sgd.param_groups().pop_back();
  expect_error<ConfigError>(
      [&] { schedule.step(); },
      "made for 2 parameter groups, but its optimizer has 1 now");
}

}  // namespace schedulers_test
}  // namespace accelerate
