// Which optimizers prepare() accepts where ranks hold parts of a model.
#include <memory>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include "support/expect_error.h"
#include "support/expert_net.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace optimizer_fit_test {

using testing::expect_error;
using testing::ExpertNet;
using testing::run_on_ranks;
using torch::optim::SGDOptions;
using Parameters = std::vector<at::Tensor>;
using Maker = std::unique_ptr<torch::optim::Optimizer> (*)(Parameters);

// Scales each step by the norm of a parameter, as LAMB does.
class Lamb : public torch::optim::Optimizer {
 public:
  explicit Lamb(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (at::Tensor& p : group.params())
        if (p.grad().defined()) p.sub_(p.grad() * p.norm());
    }
    return {};
  }
};

class LambOfWholeParameters final : public Lamb, public optim::Parameterwise {
 public:
  using Lamb::Lamb;
};

class SignSgd final : public torch::optim::SGD, public optim::Elementwise {
 public:
  using SGD::SGD;
};

// Does not say what its steps need.
class OwnSgd final : public torch::optim::SGD {
 public:
  using SGD::SGD;
};

struct Kind {
  const char* name;
  Maker make;
  /// In the error; empty if it fits models of any kind.
  const char* phrase;
  bool fits_pipelines = false;
};

template <class T, class... Options>
std::unique_ptr<torch::optim::Optimizer> make(Parameters parameters) {
  return std::make_unique<T>(std::move(parameters), Options(0.1)...);
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kinds{
      {"LBFGS",
       &make<torch::optim::LBFGS>,
       "torch::optim::LBFGS computes its steps from all parameters at once"},
      {"Lamb", &make<Lamb>, "Lamb may compute its steps from more than"},
      {"LambOfWholeParameters",
       &make<LambOfWholeParameters>,
       "derive the class from accelerate::optim::Elementwise",
       /*fits_pipelines=*/true},
      {"OwnSgd", &make<OwnSgd, SGDOptions>, "OwnSgd may compute"},
      {"SignSgd", &make<SignSgd, SGDOptions>, ""},
      {"SGD", &make<torch::optim::SGD, SGDOptions>, ""},
      {"Adam", &make<torch::optim::Adam>, ""},
      {"AdamW", &make<optim::AdamW>, ""},
      {"Adagrad", &make<optim::Adagrad>, ""},
      {"RMSprop", &make<torch::optim::RMSprop>, ""}};
  return kinds;
}

// Prepares each kind of optimizer by `prepare(accelerator, kind)`.
template <class Prepare>
void expect_fits(
    const ParallelOptions& parallel,
    const std::string& divided,
    const Prepare& prepare) {
  const bool is_pipeline = parallel.pipeline.value_or(1) > 1;
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator({.parallel = parallel, .world = world});
      const auto run = [&] { prepare(accelerator, kind); };
      const bool fits = divided.empty() || *kind.phrase == '\0' ||
          (is_pipeline && kind.fits_pipelines);
      if (fits) return run();
      expect_error<ConfigError>(run, kind.phrase);
      accelerator.free_memory();
      expect_error<ConfigError>(run, divided);
    });
  }
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(
      torch::nn::Linear(4, 6), torch::nn::Linear(6, 4));
}

void prepare_layers(const Accelerator& accelerator, const Kind& kind) {
  torch::nn::Sequential net = two_layers();
  accelerator.prepare(net, kind.make(net->parameters()));
}

TEST(OptimizerFit, TakesAllWhereModelsAreReplicated) {
  expect_fits({.replicate = 2}, "", prepare_layers);
}

TEST(OptimizerFit, RefusesNormsOfShards) {
  const std::string divided = "is divided over the 2 ranks along shard";
  expect_fits({.shard = 2}, divided, prepare_layers);
  expect_fits(
      {.deepspeed = DeepSpeedOptions{.zero_stage = 1}},
      divided,
      prepare_layers);
}

TEST(OptimizerFit, RefusesNormsOfSlicesOfLayers) {
  expect_fits(
      {.tensor = 2,
       .parallelize_plan =
           ParallelizePlan{{"0", ColwiseParallel{}}, {"1", RowwiseParallel{}}}},
      "\"0.weight\" is divided over the 2 ranks along tensor",
      prepare_layers);
}

TEST(OptimizerFit, RefusesNormsOfSomeExperts) {
  expect_fits(
      {.expert = 2, .parallelize_plan = ParallelizePlan{}},
      "is divided over the 2 ranks along expert",
      [](const Accelerator& accelerator, const Kind& kind) {
        ExpertNet net;
        accelerator.prepare(net, kind.make(net->parameters()));
      });
}

TEST(OptimizerFit, RefusesNormsOfAllParametersInPipelines) {
  expect_fits(
      {.pipeline = 2},
      "a pipeline of 2 stages divides the parameters",
      [](const Accelerator& accelerator, const Kind& kind) {
        PipelineLayers layers;
        layers.add("a", torch::nn::Linear(4, 6))
            .add("b", torch::nn::Linear(6, 4));
        const Pipeline pipeline(
            accelerator,
            layers,
            {.split_points = {"b"}, .num_micro_batches = 2});
        accelerator.prepare(kind.make(pipeline.parameters()));
      });
}

TEST(OptimizerFit, LooksAtOptimizersThatWerePreparedBeforeTheirModel) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.shard = 2}, .world = world});
    torch::nn::Sequential net = two_layers();
    torch::optim::LBFGS lbfgs(net->parameters());
    const auto optimizer = accelerator.prepare(lbfgs);
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net); }, "torch::optim::LBFGS computes");
  });
}

// Only the parameters that it steps on matter.
TEST(OptimizerFit, TakesAllForParametersThatNoRankShares) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .parallelize_plan =
                  ParallelizePlan{
                      {"0", ColwiseParallel{}}, {"1", RowwiseParallel{}}}},
         .world = world});
    torch::nn::Sequential net = two_layers();
    net->push_back(torch::nn::Linear(4, 4));
    EXPECT_NO_THROW(accelerator.prepare(
        net, std::make_unique<Lamb>((*net)[2]->parameters())));
  });
}

}  // namespace optimizer_fit_test
}  // namespace accelerate
