// Saving and loading weights of sharded models, without full copies.
#include <map>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace shard_weights_test {

using testing::expect_error;
using testing::has_memory;
using testing::named;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

struct Head : nn::Module {
  explicit Head(const Tensor& tied) {
    weight = register_parameter("weight", tied);
    bias = register_parameter("bias", torch::zeros({tied.size(0)}));
  }
  Tensor weight, bias;
};

// A net with odd sizes, a tied weight, a buffer, a scalar and an ignored
// parameter.
struct NetImpl : nn::Module {
  explicit NetImpl(double scale = 1) {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(7, 7));
    register_module("layers", layers);
    embed = register_module("embed", nn::Embedding(5, 7));
    head = register_module("head", std::make_shared<Head>(embed->weight));
    factor = register_parameter("factor", torch::ones({}));
    mean = register_buffer("mean", torch::zeros({3}));
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (Tensor& parameter : parameters()) {
      const Tensor values =
          torch::sin(torch::arange(parameter.numel()) + 37 * number++);
      parameter.copy_((values * 0.3 * scale).view(parameter.sizes()));
    }
    mean.add_(scale);
  }
  Tensor forward(const Tensor& tokens) {
    Tensor h = embed(tokens);
    for (const auto& layer : *layers)
      h = torch::tanh(layer->as<nn::Linear>()->forward(h));
    return nn::functional::linear(h, head->weight, head->bias) * factor +
        mean.sum();
  }
  nn::ModuleList layers;
  nn::Embedding embed{nullptr};
  std::shared_ptr<Head> head;
  Tensor factor, mean;
};
TORCH_MODULE(Net);

void expect_equal(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
  }
}

ParallelOptions fully_sharded() {
  return {.fully_sharded = FullyShardedDataParallelOptions()};
}

Tensor tokens(const Accelerator& accelerator, int step) {
  const Tensor all = torch::arange(24).add(step).remainder(5).view({12, 2});
  const int size = 12 / accelerator.num_processes();
  return all.narrow(0, accelerator.process_index() * size, size);
}

// Full weights after some steps.
template <class M>
Weights train(const Accelerator& accelerator, const Model<M>& model) {
  torch::optim::SGD inner(model.module()->parameters(), 0.1);
  const auto optimizer = accelerator.prepare(inner);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(tokens(accelerator, step)).pow(2).mean());
    optimizer.step();
  }
  return named(accelerator.get_state_dict(model, {.rank0_only = false}));
}

TEST(ShardedWeights, AreSavedOneByOne) {
  for (const bool bf16 : {false, true}) {
    const TemporaryDirectory directory;
    run_on_ranks(3, [&](const WorldOptions& world) {
      ParallelOptions parallel = fully_sharded();
      if (bf16) {
        parallel.fully_sharded->mixed_precision_policy =
            MixedPrecisionPolicy{.param_dtype = FloatType::bf16};
      }
      const Accelerator accelerator({.parallel = parallel, .world = world});
      Net net;
      const auto model = accelerator.prepare(net);
      accelerator.save_model(model, directory.path() / "full");
      accelerator.save_model(
          model, directory.path() / "files", {.max_shard_size = 100});
      EXPECT_FALSE(has_memory(net->embed->weight));
    });
    // Shards are fp32, whatever the compute dtype.
    Net expected;
    for (const char* const name : {"full", "files"}) {
      SCOPED_TRACE(name);
      Net loaded(0);
      load_model(*loaded, directory.path() / name);
      expect_equal(
          named(get_state_dict(*loaded)), named(get_state_dict(*expected)));
    }
  }
}

TEST(ShardedWeights, AreGatheredOnRank0OrAll) {
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = fully_sharded(), .world = world});
    const Weights expected = named(get_state_dict(*Net()));
    Net net;
    const auto model = accelerator.prepare(net);
    const WeightList on_rank_0 = accelerator.get_state_dict(model);
    if (accelerator.is_main_process()) {
      expect_equal(named(on_rank_0), expected);
    } else {
      EXPECT_TRUE(on_rank_0.empty());
    }
    const WeightList everywhere =
        accelerator.get_state_dict(model, {.rank0_only = false});
    expect_equal(named(everywhere), expected);
    // Tied names stay tied.
    const auto find = [&](const std::string& name) {
      return std::find_if(
                 everywhere.begin(),
                 everywhere.end(),
                 [&](const auto& item) { return item.first == name; })
          ->second;
    };
    EXPECT_TRUE(find("embed.weight").is_same(find("head.weight")));
  });
}

TEST(ShardedWeights, AreGivenInShardsWithTheirOffsets) {
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = fully_sharded(), .world = world});
    const Weights expected = named(get_state_dict(*Net()));
    Net net;
    const auto model = accelerator.prepare(net);
    std::int64_t count = 0;
    for (const WeightShard& shard : model.state_dict_shards()) {
      Tensor box = expected.at(shard.name);
      EXPECT_EQ(box.sizes(), at::IntArrayRef(shard.global_shape)) << shard.name;
      for (std::int64_t axis = 0; axis < box.dim(); ++axis) {
        box = box.narrow(
            axis,
            shard.offset[static_cast<std::size_t>(axis)],
            shard.tensor.size(axis));
      }
      EXPECT_TRUE(torch::equal(shard.tensor, box)) << shard.name;
      count += shard.tensor.numel();
    }
    EXPECT_LT(count, 130);
    for (const auto& [name, tensor] : accelerator.get_state_dict(
             model, {.type = StateDictType::sharded_state_dict})) {
      if (tensor.dim() < 2) continue;
      EXPECT_LE(tensor.size(0), 3) << name;
    }
  });
}

TEST(ShardedWeights, AreReadByEachRankOrByRank0) {
  const TemporaryDirectory directory;
  save_model(*Net(2), directory.path());
  const Weights expected = named(get_state_dict(*Net(2)));
  for (const bool from_rank_0 : {false, true}) {
    for (const bool shards : {true, false}) {
      run_on_ranks(2, [&](const WorldOptions& world) {
        const Accelerator accelerator(
            {.parallel = shards ? fully_sharded() : ParallelOptions(),
             .world = world});
        Net net;
        const auto model = accelerator.prepare(net);
        accelerator.load_model(
            model, directory.path(), {.broadcast_from_rank0 = from_rank_0});
        expect_equal(
            named(accelerator.get_state_dict(model, {.rank0_only = false})),
            expected);
        // All ranks refuse weights that do not fit.
        expect_error<CheckpointError>(
            [&] {
              accelerator.load_model(
                  model,
                  directory.path(),
                  {.rename = rename_prefixes({{"factor", "divisor"}}),
                   .broadcast_from_rank0 = from_rank_0});
            },
            "divisor");
      });
    }
  }
  Net alone;
  expect_error<ConfigError>(
      [&] {
        load_model(*alone, directory.path(), {.broadcast_from_rank0 = true});
      },
      "Accelerator::load_model()");
}

TEST(ShardedWeights, AreDescribedOneByOne) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    ParallelOptions parallel = fully_sharded();
    parallel.fully_sharded->ignored_modules = "layers.2";
    parallel.fully_sharded->mixed_precision_policy = MixedPrecisionPolicy{
        .param_dtype = FloatType::bf16, .reduce_dtype = FloatType::fp32};
    const Accelerator accelerator({.parallel = parallel, .world = world});
    Net net;
    net->layers[0]->to(torch::kBFloat16);
    const auto model = accelerator.prepare(net);
    const std::string description = describe(model);
    const std::string rows =
        accelerator.is_main_process() ? "0 to 3" : "3 to 7";
    EXPECT_THAT(
        description,
        ::testing::AllOf(
            ::testing::HasSubstr(
                "layers.0.weight: Float [7, 7], in the unit of layers.0, "
                "rows " +
                rows +
                " kept here in Float, computed in BFloat16, reduced in "
                "Float\n"),
            ::testing::HasSubstr(
                "layers.2.weight: Float [7, 7], full on every rank\n"),
            ::testing::HasSubstr("factor: Float [], full on every rank\n")));
  });
}

TEST(EmptyWeights, OfAShardedModelAreLoadedByShards) {
  const TemporaryDirectory directory;
  save_model(*Net(2), directory.path());
  Weights expected;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = fully_sharded(), .world = world});
    Net full(2);
    const Weights weights = train(accelerator, accelerator.prepare(full));
    if (accelerator.is_main_process()) expected = weights;
  });
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = fully_sharded(), .world = world});
    Net net = init_empty_weights([] { return Net(); });
    const auto model = accelerator.prepare(net);
    EXPECT_FALSE(has_memory(net->embed->weight));
    EXPECT_TRUE(net->embed->weight.is_cpu());
    expect_error<ConfigError>(
        [&] { model(tokens(accelerator, 0)); }, "has no values yet");
    accelerator.load_model(
        model, directory.path(), {.broadcast_from_rank0 = true});
    expect_equal(train(accelerator, model), expected);
  });
}

TEST(EmptyWeights, AreFilledFromRank0AtPrepare) {
  for (const bool shards : {true, false}) {
    run_on_ranks(3, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = shards ? fully_sharded() : ParallelOptions(),
           .world = world});
      Net net = accelerator.is_main_process()
          ? Net(3)
          : init_empty_weights([] { return Net(); });
      const auto model = accelerator.prepare(net);
      const Weights expected = named(get_state_dict(*Net(3)));
      expect_equal(
          named(accelerator.get_state_dict(model, {.rank0_only = false})),
          expected);
      train(accelerator, model);
      // If rank 0 had empty weights, there would be no initial values.
      Net other = accelerator.is_main_process()
          ? init_empty_weights([] { return Net(); })
          : Net(3);
      expect_error<ConfigError>(
          [&] { accelerator.prepare(other); },
          "build it with values on rank 0");
    });
  }
}

TEST(EmptyWeights, AreLoadedFromCheckpoints) {
  const TemporaryDirectory directory;
  for (const bool shards : {true, false}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = shards ? fully_sharded() : ParallelOptions(),
           .world = world});
      Net net(2);
      const auto model = accelerator.prepare(net);
      accelerator.save_state(directory.path() / (shards ? "s" : "r"));
    });
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = shards ? fully_sharded() : ParallelOptions(),
           .world = world});
      Net net = init_empty_weights([] { return Net(); });
      const auto model = accelerator.prepare(net);
      accelerator.load_state(directory.path() / (shards ? "s" : "r"));
      expect_equal(
          named(accelerator.get_state_dict(model, {.rank0_only = false})),
          named(get_state_dict(*Net(2))));
      EXPECT_NO_THROW(model(tokens(accelerator, 0)));
    });
  }
}

TEST(EmptyWeights, OfAModuleAreLoadedInPlace) {
  const TemporaryDirectory directory;
  save_model(*Net(2), directory.path());
  Net net = init_empty_weights([] { return Net(); });
  const Tensor weight = net->embed->weight;
  EXPECT_TRUE(weight.is_meta());
  EXPECT_TRUE(weight.requires_grad());
  load_model(*net, directory.path());
  EXPECT_TRUE(weight.is_cpu());
  expect_equal(named(get_state_dict(*net)), named(get_state_dict(*Net(2))));
  net->forward(torch::arange(5)).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

// The files have "old" and "body", the module has "new" and "body".
TEST(LoadModelOptions, SayWhatMayDiffer) {
  const auto make = [](const std::string& name, double value) {
    auto module = std::make_shared<nn::Module>();
    module->register_parameter(name, torch::full({2}, value));
    module->register_parameter("body", torch::full({2}, value));
    return module;
  };
  const TemporaryDirectory directory;
  save_model(*make("old", 1), directory.path());
  // Returns the values of "new" and "body" after loading over zeros.
  const auto load = [&](const LoadModelOptions& options) {
    const auto module = make("new", 0);
    load_model(*module, directory.path(), options);
    return std::pair(
        module->parameters()[0][0].item<double>(),
        module->parameters()[1][0].item<double>());
  };
  const auto refuses = [&](const LoadModelOptions& options,
                           const std::string& name) {
    expect_error<CheckpointError>([&] { load(options); }, name);
  };
  refuses({}, "new");
  EXPECT_EQ(load({.strict = false}), std::pair(0.0, 1.0));
  refuses({.skip = {"o*"}}, "new");
  refuses({.allow_missing = {"new"}}, "old");
  EXPECT_EQ(
      load({.skip = {"o*"}, .allow_missing = {"new"}}), std::pair(0.0, 1.0));
  EXPECT_EQ(
      load({.rename = rename_prefixes({{"old", "new"}})}), std::pair(1.0, 1.0));
  EXPECT_EQ(
      load({.skip = {"body"}, .rename = rename_prefixes({{"old", "new"}})}),
      std::pair(1.0, 0.0));
}

}  // namespace shard_weights_test
}  // namespace accelerate
