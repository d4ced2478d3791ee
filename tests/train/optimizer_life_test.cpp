// Optimizers that are destroyed before their handles, or prepared before their
// model.
#include <mutex>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "train/optimizers/optimizer_watch.h"

namespace accelerate {
namespace optimizer_life_test {

using testing::expect_error;
using testing::run_on_ranks;

torch::nn::Linear layer() {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  torch::nn::init::zeros_(net->weight);
  return net;
}

// Multiplies one number by 1.
torch::nn::Linear scale() {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::ones_(net->weight);
  return net;
}

template <class T, class Options>
std::unique_ptr<torch::optim::Optimizer> make(
    const torch::nn::Linear& net,
    const Options& options) {
  return std::make_unique<T>(net->parameters(), options);
}

TEST(OptimizerHandle, RefusesAnOptimizerThatIsGone) {
  namespace torch_optim = torch::optim;
  const auto net = layer();
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  optimizers.push_back(make<torch_optim::SGD>(net, 0.1));
  optimizers.push_back(make<torch_optim::Adam>(net, 0.1));
  optimizers.push_back(make<torch_optim::AdamW>(net, 0.1));
  optimizers.push_back(make<torch_optim::Adagrad>(net, 0.1));
  optimizers.push_back(make<torch_optim::RMSprop>(net, 0.1));
  optimizers.push_back(make<torch_optim::LBFGS>(net, 0.1));
  optimizers.push_back(make<optim::AdamW>(net, 0.1));
  optimizers.push_back(make<optim::Lomo>(net, optim::LomoOptions()));
  // Two optimizers that update in the backward cannot share parameters.
  optimizers.push_back(make<optim::AdaLomo>(layer(), optim::AdaLomoOptions()));
  for (auto& optimizer : optimizers) {
    const Accelerator accelerator;
    const Optimizer handle = accelerator.prepare(*optimizer);
    optimizer.reset();
    expect_error<ConfigError>([&] { handle.step(); }, "was destroyed");
    expect_error<ConfigError>([&] { handle.zero_grad(); }, "was destroyed");
    expect_error<ConfigError>(
        [&] { static_cast<void>(handle.inner()); }, "was destroyed");
    EXPECT_FALSE(handle.step_was_skipped());
  }
}

TEST(OptimizerHandle, FindsNoLomoThatIsGone) {
  const Accelerator accelerator;
  const auto net = layer();
  auto lomo = std::make_unique<optim::Lomo>(net->parameters());
  const auto [model, handle] = accelerator.prepare(net, *lomo);
  accelerator.lomo_backward(model(torch::ones({1, 2})).sum(), 0.5);
  EXPECT_EQ(net->weight[0][0].item<float>(), -0.5F);
  lomo.reset();
  expect_error<ConfigError>(
      [&, &model = model] {
        accelerator.lomo_backward(model(torch::ones({1, 2})).sum(), 0.5);
      },
      "there are 0");
  EXPECT_EQ(net->weight[0][0].item<float>(), -0.5F);
}

TEST(OptimizerHandle, LeavesTheRestOfTheProgramAlone) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 2}});
  const auto net = layer();
  auto first = std::make_unique<torch::optim::SGD>(net->parameters(), 1.0);
  optim::StepLR schedule(*first, {.step_size = 1});
  const auto [model, handle, scheduler] =
      accelerator.prepare(net, *first, schedule);
  first.reset();
  torch::optim::SGD second(net->parameters(), 1.0);
  const Optimizer other = accelerator.prepare(second);
  accelerator.backward(model(torch::ones({1, 2})).sum());
  accelerator.unscale_gradients();
  other.step();
  EXPECT_EQ(net->weight[0][0].item<float>(), -1);
  expect_error<ConfigError>(
      [&, &scheduler = scheduler] { scheduler.step(); }, "was destroyed");
}

TEST(OptimizerHandle, SaysThatItWasReleasedWhereItWas) {
  const Accelerator accelerator;
  const auto net = layer();
  auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 1.0);
  const Optimizer handle = accelerator.prepare(*sgd);
  accelerator.free_memory();
  sgd.reset();
  expect_error<ConfigError>([&] { handle.step(); }, "released");
}

TEST(OptimizerWatch, KeepsOptionsAndGroups) {
  const auto net = layer();
  int num_calls = 0;
  std::shared_ptr<void> watch, again;
  {
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.25).momentum(0.5));
    watch = detail::watch_optimizer(sgd, [&] { ++num_calls; });
    EXPECT_NE(watch, nullptr);
    again = detail::watch_optimizer(sgd, [&] { ++num_calls; });
    const auto& defaults =
        static_cast<const torch::optim::SGDOptions&>(sgd.defaults());
    EXPECT_EQ(defaults.lr(), 0.25);
    EXPECT_EQ(defaults.momentum(), 0.5);
    // New groups get unwatched options.
    sgd.add_param_group({{torch::ones({1}).requires_grad_()}});
    const auto& added = sgd.param_groups()[1].options();
    EXPECT_EQ(typeid(added), typeid(torch::optim::SGDOptions));
    {
      const auto short_lived = detail::watch_optimizer(sgd, [&] { FAIL(); });
    }
    EXPECT_EQ(num_calls, 0);
  }
  EXPECT_EQ(num_calls, 2);
}

// An optimizer class with options unknown to LibTorch.
struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {};
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(std::vector<torch::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

TEST(OptimizerHandle, BorrowsNoOptimizerWhoseEndItCouldNotNotice) {
  const auto make_own = [] {
    return std::make_unique<OwnOptimizer>(
        std::vector<torch::Tensor>{torch::ones({1})});
  };
  auto own = make_own();
  EXPECT_FALSE(detail::can_watch(*own));
  EXPECT_EQ(detail::watch_optimizer(*own, [] {}), nullptr);
  const Accelerator accelerator;
  const auto net = layer();
  expect_error<ConfigError>(
      [&] { static_cast<void>(accelerator.prepare(net, *own)); },
      "argument 2 of prepare() is an optimizer whose options are "
      "accelerate::optimizer_life_test::OwnOptions, a class of the program's "
      "own");
  // The base class does not reveal any more.
  torch::optim::Optimizer& base = *own;
  expect_error<ConfigError>(
      [&] { static_cast<void>(accelerator.prepare(base)); }, "std::unique_ptr");
  const Optimizer moved = accelerator.prepare(std::move(own));
  EXPECT_NO_THROW(moved.step());
  const std::shared_ptr<OwnOptimizer> shared = make_own();
  const std::weak_ptr<OwnOptimizer> watched = shared;
  {
    const Optimizer handle = accelerator.prepare(shared);
    EXPECT_EQ(&handle.inner(), shared.get());
  }
  EXPECT_EQ(watched.use_count(), 2);
  accelerator.free_memory();
  EXPECT_EQ(watched.use_count(), 1);
}

class Warnings {
 public:
  [[nodiscard]] Logger logger() {
    return {
        [this](const LogRecord& record) {
          const std::lock_guard lock(mutex_);
          lines_.emplace_back(record.message);
        },
        LogLevel::warning};
  }
  [[nodiscard]] std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Takes one step on each of two ranks, with gradients 1 and 2.
void step_once(
    const Accelerator& accelerator,
    const Model<torch::nn::LinearImpl>& model,
    const Optimizer& optimizer) {
  accelerator.backward(
      model(torch::full({1, 2}, accelerator.process_index() + 1, torch::kFloat))
          .sum());
  optimizer.step();
}

TEST(PrepareOrder, OptimizersMayComeBeforeTheirModel) {
  Warnings warnings;
  FullyShardedDataParallelOptions sharded;
  for (const ParallelOptions& parallel :
       {ParallelOptions{}, ParallelOptions{.fully_sharded = sharded}}) {
    run_on_ranks(2, [&](WorldOptions world) {
      world.logger = warnings.logger();
      const Accelerator accelerator({.parallel = parallel, .world = world});
      const auto net = layer();
      torch::optim::SGD sgd(net->parameters(), 1.0);
      const Optimizer optimizer = accelerator.prepare(sgd);
      const auto model = accelerator.prepare(net);
      step_once(accelerator, model, optimizer);
      const auto full = model.full_parameters();
      EXPECT_EQ(net->weight[0][0].item<float>(), -1.5F);
    });
    EXPECT_THAT(warnings.take(), ::testing::IsEmpty());
  }
}

// Parameters that the optimizer was given before another model was prepared.
TEST(PrepareOrder, AnotherModelMayComeAfterAddedParameters) {
  for (const int stage : {1, 2, 3}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel =
               {.deepspeed =
                    DeepSpeedOptions{
                        .gradient_clipping = 0, .zero_stage = stage}},
           .world = world});
      torch::nn::Sequential net(layer(), scale());
      const auto other_net = layer();
      torch::optim::SGD sgd({net->parameters()[1]}, 1.0);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      sgd.add_param_group({{net->parameters()[0]}});
      const auto other = accelerator.prepare(other_net);
      const torch::Tensor x =
          torch::full({1, 2}, accelerator.process_index() + 1, torch::kFloat);
      accelerator.backward(model(x).sum());
      optimizer.step();
      const auto full = model.full_parameters();
      EXPECT_EQ(net->parameters()[0][0][0].item<float>(), -1.5F);
    });
  }
}

TEST(PrepareOrder, WarnsOfParametersThatNoModelHas) {
  Warnings warnings;
  run_on_ranks(2, [&](WorldOptions world) {
    world.logger = warnings.logger();
    const Accelerator accelerator({.world = world});
    torch::optim::SGD sgd({torch::ones({1}).requires_grad_()}, 1.0);
    const Optimizer optimizer = accelerator.prepare(sgd);
    EXPECT_THAT(warnings.take(), ::testing::IsEmpty());
    accelerator.wait_for_everyone();
    optimizer.step();
    optimizer.step();
  });
  EXPECT_THAT(
      warnings.take(),
      ::testing::ElementsAre(
          ::testing::HasSubstr("steps on 1 tensors of no prepared model")));
}

}  // namespace optimizer_life_test
}  // namespace accelerate
