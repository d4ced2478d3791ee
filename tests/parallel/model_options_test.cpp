// Several models of one Accelerator, each with its own settings.
#include <map>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace model_options_test {

using testing::expect_error;
using testing::has_memory;
using testing::named;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

struct MlpImpl : nn::Module {
  explicit MlpImpl(double phase) {
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(5, 5));
    register_module("layers", layers);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : parameters()) {
      const Tensor angles = torch::arange(parameter.numel()) * 0.7 + phase;
      parameter.copy_(torch::sin(angles).view(parameter.sizes()) * 0.5);
      phase += 11;
    }
  }
  Tensor forward(Tensor h) {
    for (const auto& layer : *layers)
      h = torch::tanh(layer->as<nn::Linear>()->forward(h));
    return h;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Mlp);

Tensor weight_of(const Mlp& model) {
  return model->layers->at<nn::LinearImpl>(0).weight;
}

FullyShardedDataParallelOptions strategy(ShardingStrategy value) {
  return {.sharding_strategy = value};
}

void expect_near(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::allclose(found.at(name), tensor, 1e-5, 1e-6)) << name;
  }
}

// Two models with options for each, and one optimizer for those that train.
struct Pair {
  Pair(
      const AcceleratorOptions& options,
      const ModelOptions& of_first,
      const ModelOptions& of_second,
      bool trains_second)
      : accelerator(options) {
    if (!trains_second) {
      for (Tensor& parameter : second->parameters())
        parameter.requires_grad_(false);
    }
    std::vector<Tensor> trained = first->parameters();
    if (trains_second) {
      for (const Tensor& parameter : second->parameters())
        trained.push_back(parameter);
    }
    inner.emplace(trained, torch::optim::AdamWOptions(0.05));
    auto [a, b, stepper] = accelerator.prepare(
        with_options(first, of_first), with_options(second, of_second), *inner);
    first_model.emplace(a);
    second_model.emplace(b);
    optimizer.emplace(stepper);
  }

  std::vector<double> train(int begin, int end) {
    std::vector<double> norms;
    for (int step = begin; step < end; ++step) {
      const Tensor all =
          torch::sin(torch::arange(60).view({12, 5}) * 0.3 + step);
      const int rows = 12 / accelerator.num_processes();
      const Tensor x = all.narrow(0, accelerator.process_index() * rows, rows);
      optimizer->zero_grad();
      const Tensor loss =
          ((*first_model)(x) - (*second_model)(x)).pow(2).mean();
      accelerator.backward(loss);
      norms.push_back(
          accelerator.clip_grad_norm_(inner->param_groups()[0].params(), 0.1)
              .item<double>());
      optimizer->step();
    }
    return norms;
  }

  Weights weights() {
    Weights all;
    for (const auto& [name, tensor] :
         named(accelerator.get_state_dict(*first_model, {.rank0_only = false})))
      all["first." + name] = tensor;
    for (const auto& [name, tensor] : named(
             accelerator.get_state_dict(*second_model, {.rank0_only = false})))
      all["second." + name] = tensor;
    return all;
  }

  Accelerator accelerator;
  Mlp first{0.1}, second{3.0};
  std::optional<torch::optim::AdamW> inner;
  std::optional<Model<MlpImpl>> first_model, second_model;
  std::optional<Optimizer> optimizer;
};

struct Case {
  std::string_view name;
  int ranks;
  ParallelOptions parallel;
  ModelOptions first, second;
  bool splits_first, splits_second;
};

std::vector<Case> cases() {
  const auto sharded =
      ParallelOptions{.fully_sharded = FullyShardedDataParallelOptions()};
  const ModelOptions copied{
      .fully_sharded = strategy(ShardingStrategy::no_shard)};
  const ModelOptions full{
      .fully_sharded = strategy(ShardingStrategy::full_shard)};
  FullyShardedDataParallelOptions far_sighted;
  far_sighted.limit_all_gathers = false;
  return {
      {"a copied student, a split teacher", 3, {}, {}, full, false, true},
      {"a split student, a copied teacher",
       2,
       sharded,
       {},
       copied,
       true,
       false},
      {"ZeRO-2 beside ZeRO-3",
       3,
       {.deepspeed = DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 2}},
       {},
       {.deepspeed = DeepSpeedOptions{.zero_stage = 3}},
       false,
       true},
      {"hybrid beside full",
       4,
       sharded,
       {.replicate = 2, .shard = 2},
       {},
       true,
       true},
      {"three grids of the ranks", 4, {}, {.shard = 2}, full, true, true},
      {"two units ahead",
       2,
       {},
       {.fully_sharded = far_sighted},
       {.fully_sharded = far_sighted},
       true,
       true},
      {"own options",
       2,
       {},
       {.activation_checkpointing = ActivationCheckpointingOptions()},
       {.replicate_options = ReplicateOptions{.gradient_as_bucket_view = true}},
       false,
       false},
  };
}

TEST(ModelOptions, TrainEachModelInItsOwnWay) {
  for (const bool trains_second : {false, true}) {
    Weights expected;
    std::vector<double> norms;
    run_on_ranks(1, [&](const WorldOptions& world) {
      Pair pair({.world = world}, {}, {}, trains_second);
      norms = pair.train(0, 4);
      expected = pair.weights();
    });
    for (const Case& test : cases()) {
      SCOPED_TRACE(test.name);
      run_on_ranks(test.ranks, [&](const WorldOptions& world) {
        Pair pair(
            {.parallel = test.parallel, .world = world},
            test.first,
            test.second,
            trains_second);
        const auto found = pair.train(0, 4);
        ASSERT_EQ(found.size(), norms.size());
        for (std::size_t i = 0; i < norms.size(); ++i)
          EXPECT_NEAR(found[i], norms[i], 1e-5);
        EXPECT_EQ(has_memory(weight_of(pair.first)), !test.splits_first);
        EXPECT_EQ(has_memory(weight_of(pair.second)), !test.splits_second);
        expect_near(pair.weights(), expected);
      });
    }
  }
}

TEST(ModelOptions, AreNotStoredInCheckpoints) {
  const TemporaryDirectory directory;
  Weights expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    Pair pair({.world = world}, {}, {}, true);
    pair.train(0, 4);
    expected = pair.weights();
  });
  const auto all = cases();
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    const auto path = directory.path() / std::to_string(i);
    run_on_ranks(all[i].ranks, [&](const WorldOptions& world) {
      Pair pair(
          {.parallel = all[i].parallel, .world = world},
          all[i].first,
          all[i].second,
          true);
      pair.train(0, 2);
      pair.accelerator.save_state(path);
    });
    // Loads on a different number of ranks, with different settings.
    const Case& next = all[(i + 1) % all.size()];
    run_on_ranks(next.ranks, [&](const WorldOptions& world) {
      Pair pair(
          {.parallel = next.parallel, .world = world},
          next.first,
          next.second,
          true);
      pair.accelerator.load_state(path);
      pair.train(2, 4);
      expect_near(pair.weights(), expected);
    });
  }
}

TEST(ModelOptions, NamesModelsThatCannotBePlanned) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Mlp first(1), second(2);
    const Tensor before = weight_of(second).clone();
    const auto refused = [&](const ModelOptions& options,
                             const std::string& why) {
      expect_error<ConfigError>(
          [&] { accelerator.prepare(first, with_options(second, options)); },
          why);
    };
    refused({.shard = 3}, "model 2 of prepare()");
    refused({.shard = 3}, "shard (3)");
    refused({.replicate = 2, .shard = 2}, "4 ranks");
    refused(
        {.fully_sharded = FullyShardedDataParallelOptions(),
         .deepspeed = DeepSpeedOptions()},
        "leave one of them out");
    refused(
        {.shard = 2, .fully_sharded = strategy(ShardingStrategy::no_shard)},
        "shards nothing");
    refused(
        {.deepspeed = DeepSpeedOptions{.gradient_clipping = 1.0}},
        "but applies to all models");
    refused(
        {.deepspeed = DeepSpeedOptions{.gradient_accumulation_steps = 4}},
        "which step together with this one");
    EXPECT_TRUE(torch::equal(weight_of(second), before));
    // The failed calls prepared nothing.
    EXPECT_NO_THROW(accelerator.prepare(first, second));
  });
}

TEST(ModelOptions, GiveAModelItsOwnPrecisionAndUnits) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Mlp student(1), teacher(2);
    FullyShardedDataParallelOptions options;
    options.mixed_precision_policy =
        MixedPrecisionPolicy{.param_dtype = FloatType::bf16};
    options.auto_wrap_policy = AutoWrapPolicy::no_wrap;
    const auto [a, b] = accelerator.prepare(
        student, with_options(teacher, {.fully_sharded = options}));
    EXPECT_THAT(describe(a), ::testing::HasSubstr("full on every rank"));
    EXPECT_THAT(describe(b), ::testing::HasSubstr("computed in BFloat16"));
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({2, 5});
    EXPECT_EQ(a(x).scalar_type(), torch::kFloat);
    EXPECT_EQ(b(x).scalar_type(), torch::kBFloat16);
    EXPECT_FALSE(has_memory(weight_of(teacher)));
  });
}

TEST(ModelOptions, LeaveInputsToTheModelIfThePolicySaysSo) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Mlp net(1);
    FullyShardedDataParallelOptions options;
    options.mixed_precision_policy = MixedPrecisionPolicy{
        .param_dtype = FloatType::bf16, .cast_root_forward_inputs = false};
    const auto model =
        accelerator.prepare(with_options(net, {.fully_sharded = options}));
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({2, 5});
    EXPECT_THROW(model(x), c10::Error);
    EXPECT_EQ(model(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
}

TEST(InitModel, GivesValuesToRank0Only) {
  const auto efficient = [] {
    FullyShardedDataParallelOptions options;
    options.cpu_ram_efficient_loading = true;
    return ParallelOptions{.fully_sharded = options};
  };
  for (const ParallelOptions& parallel :
       {efficient(),
        ParallelOptions{.deepspeed = DeepSpeedOptions{.zero_stage = 3}}}) {
    run_on_ranks(3, [&](const WorldOptions& world) {
      const Accelerator accelerator({.parallel = parallel, .world = world});
      auto [net, copy] =
          accelerator.init_model([] { return std::pair(Mlp(4), Mlp(5)); });
      EXPECT_EQ(weight_of(net).is_meta(), accelerator.process_index() != 0);
      const ModelOptions copied{
          .fully_sharded = parallel.fully_sharded
              ? std::optional(strategy(ShardingStrategy::no_shard))
              : std::nullopt,
          .deepspeed = parallel.deepspeed
              ? std::optional(DeepSpeedOptions{.zero_stage = 0})
              : std::nullopt};
      const auto [model, other] =
          accelerator.prepare(net, with_options(copy, copied));
      const Weights found =
          named(accelerator.get_state_dict(model, {.rank0_only = false}));
      EXPECT_TRUE(torch::equal(found.at("layers.0.weight"), weight_of(Mlp(4))));
      EXPECT_TRUE(torch::equal(weight_of(copy), weight_of(Mlp(5))));
    });
  }
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    EXPECT_FALSE(
        weight_of(accelerator.init_model([] { return Mlp(4); })).is_meta());
  });
}

TEST(InitModel, LoadsOnRank0WhereTheSettingsSay) {
  const TemporaryDirectory directory;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Mlp net(7);
    accelerator.save_model(accelerator.prepare(net), directory.path());
  });
  for (const bool efficient : {true, false}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      FullyShardedDataParallelOptions options;
      options.cpu_ram_efficient_loading = efficient;
      const Accelerator accelerator(
          {.parallel = {.fully_sharded = options}, .world = world});
      Mlp net(4);
      const auto model = accelerator.prepare(net);
      int num_names = 0;
      LoadModelOptions loading;
      loading.rename = [&](const std::string& name) {
        ++num_names;
        return name;
      };
      accelerator.load_model(model, directory.path(), loading);
      EXPECT_EQ(num_names > 0, !efficient || accelerator.is_main_process());
      EXPECT_TRUE(torch::equal(
          named(accelerator.get_state_dict(model, {.rank0_only = false}))
              .at("layers.0.weight"),
          weight_of(Mlp(7))));
    });
  }
}

}  // namespace model_options_test
}  // namespace accelerate
