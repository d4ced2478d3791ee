// What a program changes between prepare() and a step is adapted to, or named.
// (The laws try random sequences.)
#include <functional>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace changed_models_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;

torch::nn::Linear layer(double value) {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 2).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.fill_(value);
  return net;
}

struct Change {
  std::string name;
  AcceleratorOptions options = {};
  std::function<void(torch::nn::Sequential&, torch::optim::SGD&)> change;
  /// A phrase of the error.
  std::string error;
};

// DeepSpeed clips to 1 unless told otherwise.
AcceleratorOptions zero(int stage) {
  return {
      .parallel = {
          .deepspeed =
              DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = stage}}};
}

// What is named; without an error in one process, where nothing can go wrong.
TEST(ChangedModel, IsNamedWhereItCannotBeAdaptedTo) {
  const auto set_data = [](auto& net, auto&) {
    net->parameters()[1].set_data(torch::zeros({2, 2}));
  };
  const auto unfreeze = [](auto& net, auto&) {
    net->parameters()[0].set_requires_grad(true);
  };
  AcceleratorOptions masters;
  masters.master_weights = true;
  AcceleratorOptions split;
  split.parallel.tensor = 2;
  split.parallel.parallelize_plan =
      ParallelizePlan{{"1", ColwiseParallel{.output_layouts = Replicate{}}}};
  const std::vector<Change> changes{
      {.name = "module added",
       .change = [](auto& net, auto&) { net->push_back(layer(1)); },
       .error = "\"2.weight\" was added"},
      {.name = "module added to a sharded model",
       .options = zero(3),
       .change = [](auto& net, auto&) { net->push_back(layer(1)); },
       .error = "\"2.weight\" was added"},
      {.name = "module replaced",
       .change = [](auto& net,
                    auto&) { net->replace_module("1", layer(1).ptr()); },
       .error = "\"1.weight\" was replaced"},
      {.name = "module removed",
       .change = [](auto& net, auto&) { net->unregister_module("1"); },
       .error = "\"1.weight\" was removed"},
      {.name = "other shape",
       .change =
           [](auto& net, auto&) {
             net->parameters()[1].set_data(torch::zeros({3, 2}));
           },
       .error = "\"1.weight\" had shape [2, 2] on cpu when it was prepared, "
                "but has [3, 2] on cpu now"},
      {.name = "data of zero1",
       .options = zero(1),
       .change = set_data,
       .error = "\"1.weight\" was replaced after prepare()"},
      {.name = "data of zero2",
       .options = zero(2),
       .change = set_data,
       .error = "\"1.weight\" was replaced after prepare()"},
      {.name = "data of zero3",
       .options = zero(3),
       .change = set_data,
       .error = "\"1.weight\" was replaced after prepare()"},
      {.name = "data of a split layer",
       .options = split,
       .change = set_data,
       .error = "\"1.weight\" was replaced after prepare()"},
      {.name = "unfrozen zero2",
       .options = zero(2),
       .change = unfreeze,
       .error = "\"0.weight\" was frozen when it was prepared"},
      {.name = "unfrozen zero3",
       .options = zero(3),
       .change = unfreeze,
       .error = "\"0.weight\" was frozen when it was prepared"},
      {.name = "unfrozen with masters",
       .options = masters,
       .change = unfreeze,
       .error = "\"0.weight\" is trained in 16 bits, but was not when"},
  };
  for (const Change& change : changes) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options = change.options;
      options.world = world;
      const Accelerator accelerator(options);
      torch::nn::Sequential net(layer(0.5), layer(0.5));
      if (options.master_weights) net->to(torch::kBFloat16);
      net->parameters()[0].set_requires_grad(false);
      torch::optim::SGD sgd(net->parameters(), 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      change.change(net, sgd);
      SCOPED_TRACE(change.name);
      expect_error<ConfigError>(
          [&, &model = model, &optimizer = optimizer] {
            accelerator.backward(
                model(torch::ones(
                          {1, 2},
                          net->parameters()[0].options().requires_grad(false)))
                    .sum());
            optimizer.step();
          },
          change.error);
    });
  }
}

// Another rank does not do the same.
TEST(ChangedModel, IsNamedIfOnlyOneRankUnfreezes) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Sequential net(layer(0.5), layer(0.5), layer(0.5));
    for (const int frozen : {0, 1})
      net->parameters()[static_cast<std::size_t>(frozen)].set_requires_grad(
          false);
    const auto model = accelerator.prepare(net);
    net->parameters()[static_cast<std::size_t>(accelerator.process_index())]
        .set_requires_grad(true);
    expect_error<ConfigError>(
        [&] { accelerator.backward(model(torch::ones({1, 2})).sum()); },
        "it has \"0.weight Float [2, 2] frozen\"");
  });
}

// The backbone is frozen as the head trains, and the head as the backbone does:
// no parameter that was trained in prepare() has a gradient.
TEST(ChangedModel, AveragesParametersThatWereAllFrozen) {
  for (const bool is_plain : {false, true}) {
    for (const bool calls_handle : {false, true}) {
      run_on_ranks(2, [&](const WorldOptions& world) {
        const Accelerator accelerator({.world = world});
        torch::nn::Sequential net(layer(0.5), layer(0.5));
        net->parameters()[0].set_requires_grad(false);
        torch::optim::SGD sgd(net->parameters(), 1);
        const auto [model, optimizer] = accelerator.prepare(net, sgd);
        net->parameters()[0].set_requires_grad(true);
        net->parameters()[1].set_requires_grad(false);
        const Tensor x =
            torch::full({1, 2}, accelerator.process_index() + 1, torch::kFloat);
        const Tensor loss = (calls_handle ? model(x) : net->forward(x)).sum();
        if (is_plain) {
          loss.backward();
        } else {
          accelerator.backward(loss);
        }
        optimizer.step();
        EXPECT_EQ(net->parameters()[0][0][0].item<float>(), 0.5F - 1.5F);
      });
    }
  }
}

TEST(ChangedModel, BindsParametersThatAreAddedToTheOptimizer) {
  AcceleratorOptions masters;
  masters.master_weights = true;
  for (const AcceleratorOptions& given :
       {AcceleratorOptions{}, zero(1), zero(2), zero(3), masters}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options = given;
      options.world = world;
      const Accelerator accelerator(options);
      torch::nn::Sequential net(layer(0.5), layer(0.5));
      if (options.master_weights) net->to(torch::kBFloat16);
      torch::optim::SGD sgd({net->parameters()[1]}, 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      sgd.add_param_group({{net->parameters()[0]}});
      accelerator.backward(
          model(torch::full(
                    {1, 2},
                    accelerator.process_index() + 1,
                    options.master_weights ? torch::kBFloat16 : torch::kFloat))
              .sum());
      optimizer.step();
      {
        const auto full = accelerator.full_parameters(model);
        EXPECT_EQ(net->parameters()[0][0][0].item<float>(), 0.5F - 1.5F);
        EXPECT_EQ(net->parameters()[1][0][0].item<float>(), 0.5F - 1.5F);
      }
      if (given.parallel.deepspeed || options.master_weights) {
        // The optimizer holds another tensor in its place.
        sgd.add_param_group({{net->parameters()[0]}});
        expect_error<ConfigError>(
            [&, &optimizer = optimizer] { optimizer.step(); },
            "was given a parameter after prepare() that it steps on already");
      }
    });
  }
}

TEST(ChangedModel, TakesModulesWithoutParameters) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Sequential net(layer(0.5));
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    net->push_back(torch::nn::Identity());
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(torch::ones({1, 2})).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(net->parameters()[0][0][0].item<float>(), -1.5F);
  });
}

}  // namespace changed_models_test
}  // namespace accelerate
