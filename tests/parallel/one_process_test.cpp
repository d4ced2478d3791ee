// Whatever several ranks refuse, a single rank refuses too: a program that runs
// on a laptop should not fail on the cluster.
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/local_sgd.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace one_process_test {

using testing::expect_error;
using testing::run_on_ranks;

struct Case {
  std::string name;
  /// A phrase that the error contains.
  std::string phrase;
  std::function<void(const WorldOptions&)> body;
};

void PrintTo(const Case& tried, std::ostream* out) { *out << tried.name; }

ParallelOptions sharded(FullyShardedDataParallelOptions options = {}) {
  return {.fully_sharded = std::move(options)};
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(
      torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
}

// Prepares a net and its optimizer, which has already stepped, in either order.
template <class Optimizer, class Options>
void prepare_stepped(
    const WorldOptions& world,
    const Options& options,
    bool optimizer_first) {
  const Accelerator accelerator({.parallel = sharded(), .world = world});
  auto net = two_layers();
  Optimizer stepped(net->parameters(), options);
  net->forward(torch::ones({1, 4})).sum().backward();
  stepped.step();
  if (optimizer_first) {
    static_cast<void>(accelerator.prepare(stepped, net));
  } else {
    static_cast<void>(accelerator.prepare(net, stepped));
  }
}

std::vector<Case> sharding_cases() {
  const std::string needs_all = "a sharded model must take every step";
  const std::string full = "LocalSGD averages full models";
  const auto join = [](const ParallelOptions& parallel,
                       const ModelOptions& own = {}) {
    return [=](const WorldOptions& world) {
      const Accelerator accelerator({.parallel = parallel, .world = world});
      auto net = two_layers();
      static_cast<void>(accelerator.prepare(with_options(net, own)));
      accelerator.join_uneven_inputs([] {});
    };
  };
  return {
      {"Join", needs_all, join(sharded())},
      {"JoinOfDeepSpeed",
       needs_all,
       join({.deepspeed = DeepSpeedOptions{.zero_stage = 2}})},
      {"JoinOfAModelWithOptionsOfItsOwn",
       needs_all,
       join({}, {.fully_sharded = FullyShardedDataParallelOptions()})},
      {"JoinOfAModelThatTakesTheAccelerators",
       needs_all,
       join(sharded(), {.master_weights = true})},
      {"LocalSgd",
       full,
       [](const WorldOptions& world) {
         const Accelerator accelerator({.parallel = sharded(), .world = world});
         const auto model = accelerator.prepare(two_layers());
         const LocalSGD local(accelerator, model, {.local_sgd_steps = 2});
       }},
      {"Lomo",
       "lomo_backward() updates full parameters",
       [](const WorldOptions& world) {
         const Accelerator accelerator({.parallel = sharded(), .world = world});
         auto net = two_layers();
         optim::Lomo lomo(net->parameters());
         const auto [model, optimizer] = accelerator.prepare(net, lomo);
         accelerator.lomo_backward(model(torch::ones({1, 4})).sum(), 0.1);
       }},
      {"AdagradThatHasStepped",
       "the optimizer has stepped on \"0.weight\"",
       [](const WorldOptions& world) {
         prepare_stepped<torch::optim::Adagrad>(
             world, torch::optim::AdagradOptions(0.1), false);
       }},
      {"AdamThatHasSteppedBeforeItsModelCame",
       "the optimizer has stepped on \"0.weight\"",
       [](const WorldOptions& world) {
         prepare_stepped<torch::optim::Adam>(
             world, torch::optim::AdamOptions(0.1), true);
       }},
      {"ClassesThatTheModelHasNot",
       "Encoder",
       [](const WorldOptions& world) {
         const Accelerator accelerator(
             {.parallel = sharded(
                  {.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
                   .transformer_cls_names_to_wrap =
                       std::vector<std::string>{"Encoder"}}),
              .world = world});
         static_cast<void>(accelerator.prepare(two_layers()));
       }},
      {"IgnoredModulesThatAreNoExpression",
       "must be a regular expression",
       [](const WorldOptions& world) {
         const Accelerator accelerator(
             {.parallel = sharded({.ignored_modules = "("}), .world = world});
         static_cast<void>(accelerator.prepare(two_layers()));
       }},
  };
}

// Runs `body` inside join_uneven_inputs().
std::function<void(const WorldOptions&)> joined(
    std::function<void(const Accelerator&)> body) {
  return [body = std::move(body)](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    accelerator.join_uneven_inputs([&] { body(accelerator); });
  };
}

std::vector<Case> other_cases() {
  const std::string inside = "but inside join_uneven_inputs()";
  return {
      {"JoinInsideItself",
       "called inside itself",
       joined([](const Accelerator& accelerator) {
         accelerator.join_uneven_inputs([] {});
       })},
      {"SaveStateInsideAJoin",
       inside,
       joined([](const Accelerator& accelerator) {
         accelerator.save_state("never_written");
       })},
      {"LomoInsideAJoin", inside, joined([](const Accelerator& accelerator) {
         auto net = two_layers();
         optim::Lomo lomo(net->parameters());
         const auto [model, optimizer] = accelerator.prepare(net, lomo);
         accelerator.lomo_backward(
             net->forward(torch::ones({1, 4})).sum(), 0.1);
       })},
      {"LocalSgdInsideAJoin",
       inside,
       joined([](const Accelerator& accelerator) {
         const auto model = accelerator.prepare(two_layers());
         LocalSGD local(accelerator, model, {.local_sgd_steps = 1});
         local.step();
       })},
      {"LoaderPreparedTwice",
       "already been prepared",
       [](const WorldOptions& world) {
         const Accelerator accelerator({.world = world});
         auto loader = accelerator.prepare(DataLoader(
             TensorDataset(torch::zeros({8, 1})), {.batch_size = 2}));
         static_cast<void>(accelerator.prepare(std::move(loader)));
       }},
      {"GatherOfSparseTensors",
       "must get a dense tensor",
       [](const WorldOptions& world) {
         const Accelerator accelerator({.world = world});
         static_cast<void>(accelerator.gather(torch::eye(2).to_sparse()));
       }},
      {"ReduceOfSparseTensors",
       "must get a dense tensor",
       [](const WorldOptions& world) {
         const Accelerator accelerator({.world = world});
         static_cast<void>(
             accelerator.reduce(torch::eye(2).to_sparse(), ReduceOp::sum));
       }},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> all = sharding_cases();
  for (Case& tried : other_cases()) all.push_back(std::move(tried));
  return all;
}

class OneProcess : public ::testing::TestWithParam<Case> {};

TEST_P(OneProcess, RefusesWhatSeveralRefuse) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    expect_error<ConfigError>(
        [&] { run_on_ranks(ranks, GetParam().body); }, GetParam().phrase);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    OneProcess,
    ::testing::ValuesIn(all_cases()),
    [](const ::testing::TestParamInfo<Case>& tried) {
      return tried.param.name;
    });

// Whatever several ranks accept, a single rank accepts too.
TEST(OneProcessOfSharding, TakesFreshOptimizersAndPlainModels) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    run_on_ranks(ranks, [](const WorldOptions& world) {
      const Accelerator accelerator({.parallel = sharded(), .world = world});
      auto net = two_layers();
      torch::optim::Adagrad adagrad(
          net->parameters(), torch::optim::AdagradOptions(0.1));
      const auto [model, optimizer] = accelerator.prepare(net, adagrad);
      accelerator.backward(model(torch::ones({1, 4})).sum());
      optimizer.step();
    });
  }
}

TEST(OneProcessOfSharding, JoinsModelsThatAreNeverSharded) {
  const std::vector<ParallelOptions> unsharded{
      {.shard = 1, .fully_sharded = FullyShardedDataParallelOptions()},
      {.fully_sharded =
           FullyShardedDataParallelOptions{
               .sharding_strategy = ShardingStrategy::no_shard}},
      {.deepspeed = DeepSpeedOptions{.zero_stage = 0}}};
  for (const ParallelOptions& parallel : unsharded) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(ranks);
      run_on_ranks(ranks, [&](const WorldOptions& world) {
        const Accelerator accelerator({.parallel = parallel, .world = world});
        static_cast<void>(accelerator.prepare(two_layers()));
        int calls = 0;
        accelerator.join_uneven_inputs([&] { ++calls; });
        EXPECT_EQ(calls, 1);
      });
    }
  }
}

// Sharding that does nothing in one process costs nothing per step.
TEST(OneProcessOfSharding, StepsDirectly) {
  const Accelerator accelerator(
      {.parallel = sharded(),
       .world = {.rank = 0, .size = 1, .device = at::kCPU}});
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(model(torch::ones({1, 1})).sum());
    optimizer.step();
  }
  EXPECT_TRUE(detail::runs_directly(*model.prepared()));
}

}  // namespace one_process_test
}  // namespace accelerate
