// What a program changes between prepare() and a step is adapted to, or named.
// (The laws try random sequences.)
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

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
      {.name = "member assigned",
       .change =
           [](auto& net, auto&) {
             net->template at<torch::nn::LinearImpl>(1).weight =
                 torch::zeros({2, 2}).requires_grad_();
           },
       .error = "a tensor that is not registered was assigned to \"1.weight\""},
      {.name = "member of a sharded model assigned",
       .options = zero(3),
       .change =
           [](auto& net, auto&) {
             net->template at<torch::nn::LinearImpl>(1).weight =
                 torch::zeros({2, 2}).requires_grad_();
           },
       .error = "a tensor that is not registered was assigned to \"1.weight\""},
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

struct Ways {
  ReplicateOptions buckets, views, unused, fixed, hook;
  Ways() {
    views.gradient_as_bucket_view = true;
    unused.find_unused_parameters = true;
    fixed.static_graph = true;
    hook.comm_hook = CommHook::bf16;
  }
  [[nodiscard]] std::vector<ReplicateOptions> all() const {
    return {buckets, views, unused, fixed, hook};
  }
};

void set_trained(torch::nn::Module& net, bool is_trained) {
  for (Tensor& parameter : net.parameters())
    parameter.set_requires_grad(is_trained);
}

Tensor input_of(const Accelerator& accelerator) {
  return torch::full({1, 2}, accelerator.process_index() + 1, torch::kFloat);
}

float first_gradient(const Tensor& parameter) {
  return parameter.grad()[0][0].item<float>();
}

// The micro-steps before left gradients, which are averaged all the same.
TEST(ChangedModel, AveragesWhatWasLeftOfParametersFrozenInAWindow) {
  for (const ReplicateOptions& replicate : Ways().all()) {
    for (const bool is_plain : {false, true}) {
      run_on_ranks(2, [&](const WorldOptions& world) {
        AcceleratorOptions options{
            .gradient_accumulation_steps = 2,
            .parallel = {.replicate_options = replicate},
            .world = world};
        options.world.logger = Logger([](const LogRecord&) {}, LogLevel::error);
        const Accelerator accelerator(options);
        torch::nn::Sequential net(layer(0.5), layer(0.5), layer(0.5));
        const auto model = accelerator.prepare(net);
        for (int i = 0; i < 2; ++i) {
          const auto micro_step = accelerator.accumulate(model);
          if (i == 1) net->parameters()[0].set_requires_grad(false);
          const Tensor loss = model(input_of(accelerator)).sum();
          if (is_plain) {
            (loss / 2).backward();
          } else {
            accelerator.backward(loss);
          }
        }
        // Half of 1 and of 2, once and twice, on average.
        EXPECT_EQ(first_gradient(net->parameters()[0]), 0.75F);
        EXPECT_EQ(first_gradient(net->parameters()[1]), 1.5F);
        EXPECT_EQ(first_gradient(net->parameters()[2]), 1.5F);
      });
    }
  }
}

// The whole model is frozen, and unfrozen, while the window goes on.
TEST(ChangedModel, AveragesWhatWasLeftOfAModelThatIsFrozenInAWindow) {
  for (const ReplicateOptions& replicate : Ways().all()) {
    for (const bool thaws : {false, true}) {
      // Only with this option may a backward reach a part of a model.
      if (thaws && !replicate.find_unused_parameters) continue;
      run_on_ranks(2, [&](const WorldOptions& world) {
        const Accelerator accelerator(
            {.gradient_accumulation_steps = 2,
             .parallel = {.replicate_options = replicate},
             .world = world});
        torch::nn::Sequential early_net(layer(0.5), layer(0.5));
        auto late_net = layer(0.5);
        const auto [early, late] = accelerator.prepare(early_net, late_net);
        const Tensor x = input_of(accelerator);
        {
          const auto micro_step = accelerator.accumulate(early, late);
          accelerator.backward(early(x).sum() + late(x).sum());
        }
        set_trained(*early_net, false);
        if (thaws) {
          const auto local = accelerator.no_sync(early);
          accelerator.backward(late(x).sum());
          set_trained(*early_net, true);
        }
        {
          const auto micro_step = accelerator.accumulate(early, late);
          Tensor loss = late(x).sum();
          if (thaws)
            loss =
                loss + early_net[1]->as<torch::nn::Linear>()->forward(x).sum();
          accelerator.backward(loss);
        }
        EXPECT_EQ(first_gradient(early_net->parameters()[0]), 0.75F);
        EXPECT_EQ(
            first_gradient(early_net->parameters()[1]), thaws ? 1.5F : 0.75F);
        EXPECT_EQ(first_gradient(late_net->weight), thaws ? 2.25F : 1.5F);
      });
    }
  }
}

// The critic is frozen while the generator trains, as GANs often do. Returns
// the critic's weight.
Tensor train_critic(const WorldOptions& world, bool through_frozen_critic) {
  ReplicateOptions power;
  power.comm_hook = CommHook::power_sgd;
  power.power_sgd = {.start_power_sgd_iter = 1, .min_compression_rate = 1};
  const Accelerator accelerator(
      {.parallel = {.replicate_options = power}, .world = world});
  torch::nn::Linear critic_net(torch::nn::LinearOptions(4, 4).bias(false));
  torch::nn::Linear generator_net(torch::nn::LinearOptions(4, 4).bias(false));
  const Tensor x = torch::arange(16, torch::kFloat)
                       .add(accelerator.process_index())
                       .cos()
                       .view({4, 4});
  {
    const torch::NoGradGuard no_grad;
    critic_net->weight.copy_(
        torch::arange(16, torch::kFloat).sin().view({4, 4}));
    generator_net->weight.copy_(critic_net->weight);
  }
  torch::optim::SGD sgd(critic_net->parameters(), 0.1);
  const auto [critic, generator, optimizer] =
      accelerator.prepare(critic_net, generator_net, sgd);
  for (int i = 0; i < 4; ++i) {
    accelerator.backward(critic(x).pow(2).sum());
    optimizer.step();
    optimizer.zero_grad();
    set_trained(*critic_net, false);
    const Tensor fake = generator(x);
    accelerator.backward((through_frozen_critic ? critic(fake) : fake).sum());
    set_trained(*critic_net, true);
  }
  return critic_net->weight.detach();
}

TEST(ChangedModel, KeepsTheStateOfAveragingWhileItIsFrozen) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Tensor weight = train_critic(world, true);
    const Tensor want = train_critic(world, false);
    EXPECT_TRUE(torch::equal(weight, want)) << weight << want;
  });
}

TEST(ChangedModel, MayBeFrozenAsAWholeWhileRanksJoin) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto critic_net = layer(0.5);
    auto generator_net = layer(0.5);
    torch::optim::SGD sgd(critic_net->parameters(), 1);
    const auto [critic, generator, optimizer] =
        accelerator.prepare(critic_net, generator_net, sgd);
    const Tensor x = input_of(accelerator);
    accelerator.join_uneven_inputs(
        [&, &critic = critic, &generator = generator, &optimizer = optimizer] {
          for (int i = 0; i <= accelerator.process_index(); ++i) {
            accelerator.backward(critic(x).sum());
            optimizer.step();
            optimizer.zero_grad();
            set_trained(*critic_net, false);
            accelerator.backward(critic(generator(x)).sum());
            set_trained(*critic_net, true);
          }
        });
    // The mean of 1 and 2, then 2 divided by both ranks.
    EXPECT_EQ(critic_net->weight[0][0].item<float>(), 0.5F - 2.5F);
  });
}

// Nothing of the library is called after prepare(), and LibTorch makes new
// gradient accumulators.
TEST(ChangedModel, AveragesAfterConversionsWithoutHandles) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Sequential net(layer(0.5));
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto prepared = accelerator.prepare(net, sgd);
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kFloat}) {
      net->to(dtype);
      sgd.zero_grad();
      net->forward(torch::full({1, 2}, accelerator.process_index() + 1, dtype))
          .sum()
          .backward();
      sgd.step();
    }
    EXPECT_EQ(net->parameters()[0][0][0].item<double>(), 0.5 - 3 * 1.5);
  });
}

TEST(ChangedModel, AveragesUnfrozenParametersWithoutHandles) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Sequential net(layer(0.5), layer(0.5));
    net->parameters()[0].set_requires_grad(false);
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto prepared = accelerator.prepare(net, sgd);
    EXPECT_FALSE(net->parameters()[0].requires_grad());
    net->parameters()[0].set_requires_grad(true);
    net->parameters()[1].set_requires_grad(false);
    for (int step = 0; step < 2; ++step) {
      net->forward(torch::full(
                       {1, 2}, accelerator.process_index() + 1, torch::kFloat))
          .sum()
          .backward();
      sgd.step();
      sgd.zero_grad();
    }
    EXPECT_EQ(net->parameters()[0][0][0].item<float>(), 0.5F - 3);
  });
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
        const auto full = model.full_parameters();
        EXPECT_EQ(net->parameters()[0][0][0].item<float>(), 0.5F - 1.5F);
        EXPECT_EQ(net->parameters()[1][0][0].item<float>(), 0.5F - 1.5F);
      }
      if (given.parallel.deepspeed || options.master_weights) {
        // The optimizer holds another tensor in its place.
        sgd.add_param_group({{net->parameters()[0]}});
        expect_error<ConfigError>(
            [&, &optimizer = optimizer] { optimizer.step(); },
            "got the parameter \"0.weight\" after prepare(), but already");
      }
    });
  }
}

// A reparametrised layer computes its weight before each forward.
TEST(ChangedModel, MayComputeWeights) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    torch::nn::Sequential net(layer(0.5), layer(0.5));
    Tensor& weight = net->at<torch::nn::LinearImpl>(1).weight;
    const Tensor half = net->at<torch::nn::LinearImpl>(1).register_parameter(
        "half", torch::full({2, 2}, 0.25));
    weight.set_requires_grad(false);
    torch::optim::SGD sgd({half}, 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 2; ++step) {
      net->parameters()[0].set_requires_grad(false);
      weight = half * 2;
      accelerator.backward(
          model(torch::full(
                    {1, 2}, accelerator.process_index() + 1, torch::kFloat))
              .sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    // The layer before it passes on its input, whose mean is 1.5.
    EXPECT_EQ(half[0][0].item<float>(), 0.25F - 2 * 2 * 1.5F);
  });
}

// Gradients of masters are the model's until a handle takes them.
TEST(ChangedModel, NamesOptimizersThatAreUsedThemselves) {
  AcceleratorOptions masters;
  masters.master_weights = true;
  for (const int num_ranks : {1, 2}) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      AcceleratorOptions options = masters;
      options.world = world;
      const Accelerator accelerator(options);
      torch::nn::Sequential net(layer(0.5));
      net->to(torch::kBFloat16);
      torch::optim::SGD sgd(net->parameters(), 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto backward = [&, &model = model] {
        accelerator.backward(
            model(torch::ones({1, 2}, torch::kBFloat16)).sum());
      };
      backward();
      for (const bool steps : {true, false}) {
        expect_error<ConfigError>(
            [&] { steps ? void(sgd.step()) : sgd.zero_grad(); },
            "the gradient of \"0.weight\" is still with the model's");
      }
      optimizer.step();
      EXPECT_EQ(net->parameters()[0][0][0].item<float>(), -0.5F);
      // All that is left is with the optimizer.
      sgd.zero_grad();
      backward();
      accelerator.clip_grad_norm_(model, 100);
      sgd.step();
      expect_error<ConfigError>(
          [&, &model = model] {
            static_cast<void>(accelerator.get_state_dict(model));
          },
          "an optimizer was stepped directly, not through the handle");
    });
  }
}

TEST(ChangedModel, LetsProgramsReadGradientsOfShards) {
  run_on_ranks(2, [](const WorldOptions& world) {
    AcceleratorOptions options = zero(2);
    options.world = world;
    const Accelerator accelerator(options);
    torch::nn::Sequential net(layer(0.5));
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(torch::ones({1, 2})).sum());
      const Tensor gradient = sgd.param_groups()[0].params()[0].grad();
      EXPECT_TRUE(torch::equal(gradient, torch::ones({1, 2})));
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto full = model.full_parameters();
    EXPECT_EQ(net->parameters()[0][1][1].item<float>(), 0.5F - 2);
  });
}

// The handle drops the gradients of a window that is over, whoever stepped.
TEST(ChangedModel, DropsGradientsAfterStepsOfTheOptimizerItself) {
  for (const int num_ranks : {1, 2}) {
    for (const bool drops_first : {true, false}) {
      run_on_ranks(num_ranks, [&](const WorldOptions& world) {
        const Accelerator accelerator(
            {.gradient_accumulation_steps = 2, .world = world});
        auto net = layer(0);
        torch::optim::SGD sgd(net->parameters(), 1);
        const auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int i = 0; i < 6; ++i) {
          const auto micro_step = accelerator.accumulate(model);
          if (drops_first) optimizer.zero_grad();
          accelerator.backward(model(torch::ones({1, 2})).sum());
          if (accelerator.sync_gradients()) sgd.step();
          if (!drops_first) optimizer.zero_grad();
        }
        EXPECT_EQ(net->weight[0][0].item<float>(), -3);
      });
    }
  }
}

// In one process LibTorch trains what the program has; what the library does
// with the model's parameters follows.
TEST(ChangedModel, IsFollowedInOneProcess) {
  const testing::TemporaryDirectory directory;
  for (const int window : {1, 2}) {
    run_on_ranks(1, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.gradient_accumulation_steps = window, .world = world});
      torch::nn::Sequential net(layer(0.5), layer(0.5));
      torch::optim::SGD sgd(net->parameters(), 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto train = [&, &model = model, &optimizer = optimizer] {
        for (int step = 0; step < 2 * window; ++step) {
          const auto micro_step = accelerator.accumulate(model);
          accelerator.backward(model(torch::ones({1, 2})).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      train();
      net->push_back(layer(3));
      net->replace_module("0", layer(2).ptr());
      net->unregister_module("1");
      net->register_module("1", layer(4).ptr());
      std::map<std::string, float> want;
      for (const auto& item : net->named_parameters())
        want[item.key()] = item.value()[0][0].item<float>();
      std::map<std::string, float> found;
      for (const auto& [name, tensor] : model.state_dict())
        found[name] = tensor[0][0].item<float>();
      EXPECT_EQ(found, want);
      EXPECT_EQ(found.size(), 3);
      const auto path = directory.path() / std::to_string(window);
      accelerator.save_state(path);
      accelerator.save_model(model, path / "model");
      for (Tensor& parameter : net->parameters()) parameter.detach().fill_(-1);
      accelerator.load_state(path);
      for (const auto& item : net->named_parameters())
        EXPECT_EQ(item.value()[0][0].item<float>(), want.at(item.key()));
      for (Tensor& parameter : net->parameters()) parameter.detach().fill_(-1);
      accelerator.load_model(model, path / "model");
      for (const auto& item : net->named_parameters())
        EXPECT_EQ(item.value()[0][0].item<float>(), want.at(item.key()));
      train();
    });
  }
}

// Nothing else tells that fp16's scale stays in the gradients.
TEST(ChangedModel, WarnsOfStepsOfTheOptimizerItself) {
  std::vector<std::string> warnings;
  run_on_ranks(1, [&](WorldOptions world) {
    world.logger = Logger(
        [&](const LogRecord& record) { warnings.emplace_back(record.message); },
        LogLevel::warning);
    AcceleratorOptions options{
        .mixed_precision = Precision::fp16, .world = world};
    const Accelerator accelerator(options);
    auto net = layer(0.5);
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 20; ++step) {
      sgd.zero_grad();
      accelerator.backward(model(torch::ones({1, 2})).sum());
    }
  });
  EXPECT_THAT(
      warnings,
      ::testing::Contains(::testing::HasSubstr(
          "it leaves out what the handle does: it removes fp16's scale")));
}

// A tied tensor is a parameter once per name, and so in the optimizer.
struct TiedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    return torch::linear(torch::linear(x, encoder), decoder) +
        torch::linear(x, head);
  }
  Tensor encoder = register_parameter("encoder", torch::full({2, 2}, 0.5));
  Tensor decoder = register_parameter("decoder", encoder);
  Tensor head = register_parameter("head", torch::full({2, 2}, 0.5));
};
TORCH_MODULE(Tied);

TEST(ChangedModel, MayAddToAnOptimizerOfTiedParameters) {
  AcceleratorOptions masters;
  masters.master_weights = true;
  for (const AcceleratorOptions& given :
       {AcceleratorOptions{}, zero(1), zero(2), zero(3), masters}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options = given;
      options.world = world;
      const Accelerator accelerator(options);
      Tied net;
      if (options.master_weights) {
        const auto encoder = net->encoder;
        encoder.set_data(encoder.to(torch::kBFloat16));
        net->head.set_data(net->head.to(torch::kBFloat16));
      }
      ASSERT_EQ(net->parameters().size(), 3U);
      torch::optim::SGD sgd({net->encoder, net->decoder}, 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      sgd.add_param_group({{net->head}});
      accelerator.backward(model(torch::full(
                                     {1, 2},
                                     accelerator.process_index() + 1,
                                     net->head.options().requires_grad(false)))
                               .sum());
      optimizer.step();
      const auto full = model.full_parameters();
      EXPECT_EQ(net->head[0][0].item<float>(), 0.5F - 1.5F);
      // Each name's step takes the gradient of both uses: the mean of 2 and 4.
      EXPECT_EQ(net->encoder[0][0].item<float>(), 0.5F - 2 * 3.0F);
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

// A graph that is not static, although the options say so: that rank says so,
// and the others go on.
TEST(ChangedModel, IsNamedIfItUsesMoreThanAStaticGraphDid) {
  run_on_ranks(2, [](const WorldOptions& world) {
    ReplicateOptions fixed;
    fixed.static_graph = true;
    const Accelerator accelerator(
        {.parallel = {.replicate_options = fixed}, .world = world});
    torch::nn::Sequential net(layer(0.5), layer(0.5));
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x = input_of(accelerator);
    const auto first = net->ptr<torch::nn::LinearImpl>(0);
    accelerator.backward(first->forward(x).sum());
    optimizer.step();
    optimizer.zero_grad();
    const bool changes = accelerator.process_index() == 1;
    const Tensor loss = (changes ? net->forward(x) : first->forward(x)).sum();
    if (changes) {
      expect_error<ConfigError>(
          [&] { accelerator.backward(loss); },
          "with static_graph, a rank must use them as often in every");
    } else {
      accelerator.backward(loss);
    }
  });
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return layer->forward(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode grad_mode(true);
    auto* const layer = reinterpret_cast<torch::nn::LinearImpl*>(
        context->saved_data["layer"].toInt());
    const Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_();
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};

// Each use of a shared layer adds to its gradient in a backward of its own.
TEST(ChangedModel, IsNamedIfABackwardAddsToAGradientAgain) {
  for (const bool is_fixed : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      ReplicateOptions options;
      options.static_graph = is_fixed;
      const Accelerator accelerator(
          {.parallel = {.replicate_options = options}, .world = world});
      torch::nn::Sequential net(layer(0.5));
      const auto model = accelerator.prepare(net);
      const auto shared = net->ptr<torch::nn::LinearImpl>(0);
      for (int step = 0; step < 2; ++step) {
        const Tensor x = input_of(accelerator).requires_grad_();
        const Tensor loss =
            Recomputed::apply(Recomputed::apply(x, shared.get()), shared.get())
                .sum();
        if (!is_fixed) {
          expect_error<ConfigError>(
              [&] { accelerator.backward(loss); },
              "gradients of \"0.weight\" came after");
          return;
        }
        accelerator.backward(loss);
        // Twice the mean of 1 and 2: layers of 0.5 leave equal values as they are.
        EXPECT_EQ(first_gradient(shared->weight), 2 * 1.5F);
        model.zero_grad();
      }
    });
  }
}

}  // namespace changed_models_test
}  // namespace accelerate
