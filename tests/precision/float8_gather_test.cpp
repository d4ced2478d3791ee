// Weights of sharded models that are gathered in float8.
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "support/named_weights.h"
#include "support/run_counted.h"

namespace accelerate {
namespace float8_gather_test {

namespace nn = torch::nn;
using testing::named;
using testing::run_on_ranks;
using testing::Weights;
using torch::Tensor;

// Large enough for weights to have separate messages.
constexpr std::int64_t kWidth = 128;
constexpr int kLayers = 5;

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

nn::ModuleList make_layers() {
  nn::ModuleList layers;
  std::uint64_t seed = 1;
  for (int i = 0; i < kLayers; ++i) {
    nn::Linear layer(kWidth, kWidth);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : layer->parameters())
      parameter.copy_(normal(parameter.sizes(), seed++) * 0.1);
    layers->push_back(layer);
  }
  return layers;
}

// Another module that shares a layer's weight.
struct ReaderImpl : nn::Module {
  explicit ReaderImpl(const nn::Linear& layer) {
    register_parameter("weight", layer->weight);
  }
};
TORCH_MODULE(Reader);

struct NetImpl : nn::Module {
  // With `shares`, another module has the second layer's weight.
  explicit NetImpl(bool shares = false) : layers(make_layers()) {
    register_module("layers", layers);
    if (shares)
      register_module("reader", Reader(layers->ptr<nn::LinearImpl>(1)));
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) {
      x = torch::gelu(layer->as<nn::Linear>()->forward(x));
      if (sees) sees(layer->as<nn::Linear>()->weight);
    }
    return x;
  }
  nn::ModuleList layers;
  /// Called with each weight while it is gathered.
  std::function<void(const Tensor&)> sees = nullptr;
};
TORCH_MODULE(Net);

AORecipeKwargs recipe(bool gathers_in_float8) {
  return {
      .module_filter_func = [](const std::string&,
                               const nn::Module&) { return true; },
      .enable_fsdp_float8_all_gather = gathers_in_float8};
}

// Computes with fp32 parameters unless `sharding` says otherwise; the default
// policy for fp8 would use bf16.
AcceleratorOptions options(
    bool gathers_in_float8,
    const WorldOptions& world,
    FullyShardedDataParallelOptions sharding = {}) {
  if (!sharding.mixed_precision_policy)
    sharding.mixed_precision_policy = MixedPrecisionPolicy();
  return {
      .mixed_precision = Precision::fp8,
      .fp8_recipe = recipe(gathers_in_float8),
      .autocast = {.enabled = false},
      .parallel = {.fully_sharded = sharding},
      .world = world};
}

Weights train(
    int num_ranks,
    bool gathers_in_float8,
    const FullyShardedDataParallelOptions& sharding) {
  Weights weights;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(options(gathers_in_float8, world, sharding));
    Net net;
    torch::optim::Adam adam(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 4; ++step) {
      const auto seed = static_cast<std::uint64_t>(100 * step + *world.rank);
      const Tensor x = normal({8, kWidth}, seed);
      {
        const torch::NoGradGuard no_grad;
        static_cast<void>(model(x));
      }
      optimizer.zero_grad();
      accelerator.backward(torch::square(model(x) - torch::sin(x)).mean());
      optimizer.step();
    }
    const auto found = named(accelerator.get_state_dict(model));
    if (*world.rank == 0) weights = found;
  });
  return weights;
}

TEST(Float8Gather, ChangesNoResult) {
  struct Case {
    std::string name;
    int num_ranks;
    FullyShardedDataParallelOptions sharding;
  };
  using enum ShardingStrategy;
  const std::vector<Case> cases{
      {"resharded", 2, {}},
      {"uneven", 3, {}},
      {"unsharded until the backward", 2, {.sharding_strategy = shard_grad_op}},
      {"optimizer state only",
       2,
       {.fsdp_version = 2, .reshard_after_forward = false}},
      {"in reshard groups",
       4,
       {.fsdp_version = 2, .reshard_after_forward = 2}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const Weights expected = train(each.num_ranks, false, each.sharding);
    const Weights found = train(each.num_ranks, true, each.sharding);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, weight] : expected)
      EXPECT_TRUE(torch::equal(found.at(name), weight)) << name;
  }
}

// Number of bytes that rank 0 sends in a forward.
double bytes_of_forward(bool gathers_in_float8, bool in_bf16) {
  double bytes = 0;
  testing::run_counted(
      2, [&](const WorldOptions& world, detail::TrafficCounter& counter) {
        FullyShardedDataParallelOptions sharding;
        if (in_bf16)
          sharding.mixed_precision_policy = {.param_dtype = FloatType::bf16};
        const Accelerator accelerator(
            options(gathers_in_float8, world, sharding));
        Net net;
        auto model = accelerator.prepare(net);
        const torch::NoGradGuard no_grad;
        const Tensor x = normal({8, kWidth}, 1);
        static_cast<void>(model(x));
        // Ranks agree on scales only in the first forward.
        counter.reset();
        static_cast<void>(model(x));
        EXPECT_EQ(counter.of("all_reduce").begun, 0);
        if (*world.rank == 0) bytes = counter.of("send").bytes;
      });
  return bytes;
}

TEST(Float8Gather, TakesAQuarterOfTheBytesOfFloats) {
  constexpr double kWeights = kLayers * kWidth * kWidth / 2;
  constexpr double kBiases = kLayers * kWidth / 2;
  // A transport without tags puts a header before each of two messages per
  // layer.
  constexpr double kHeaders = kLayers * 2 * 16;
  EXPECT_EQ(
      bytes_of_forward(false, false), 4 * kWeights + 4 * kBiases + kHeaders);
  EXPECT_EQ(bytes_of_forward(true, false), kWeights + 4 * kBiases + kHeaders);
  EXPECT_EQ(
      bytes_of_forward(false, true), 2 * kWeights + 2 * kBiases + kHeaders);
  EXPECT_EQ(bytes_of_forward(true, true), kWeights + 2 * kBiases + kHeaders);
}

TEST(Float8Gather, LeavesOnlyTheForwardWithRoundedWeights) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(options(true, world));
    Net net;
    const Net original;
    const Tensor own = original->layers->ptr<nn::LinearImpl>(1)->weight;
    auto model = accelerator.prepare(net);
    const Tensor weight = net->layers->ptr<nn::LinearImpl>(1)->weight;
    const Tensor x = normal({8, kWidth}, 1);
    int num_rounded = 0;
    net->sees = [&](const Tensor& seen) {
      if (seen.is_same(weight)) num_rounded += torch::equal(seen, own) ? 0 : 1;
    };
    const torch::NoGradGuard no_grad;
    static_cast<void>(model(x));
    EXPECT_EQ(num_rounded, 1);
    {
      const auto full = model.full_parameters();
      EXPECT_TRUE(torch::equal(weight, own));
      // A change too small for float8.
      weight.add_(1e-5);
      static_cast<void>(model(x));
      EXPECT_TRUE(torch::equal(weight, own + 1e-5));
    }
    static_cast<void>(model(x));
    const auto full = model.full_parameters();
    EXPECT_TRUE(torch::equal(weight, own + 1e-5));
    for (const auto& [name, found] : accelerator.get_state_dict(model)) {
      if (name != "layers.1.weight") continue;
      EXPECT_TRUE(torch::equal(found, own + 1e-5));
    }
  });
}

TEST(Float8Gather, LeavesSharedWeightsAlone) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(options(true, world));
    Net net(/*shares=*/true);
    const Net original(/*shares=*/true);
    const auto layer = [](const Net& each, int i) {
      return each->layers->ptr<nn::LinearImpl>(static_cast<std::size_t>(i));
    };
    auto model = accelerator.prepare(net);
    std::vector<bool> is_own;
    net->sees = [&](const Tensor& seen) {
      const int i = static_cast<int>(is_own.size());
      is_own.push_back(torch::equal(seen, layer(original, i)->weight));
    };
    const torch::NoGradGuard no_grad;
    static_cast<void>(model(normal({8, kWidth}, 1)));
    EXPECT_EQ(is_own, (std::vector<bool>{false, true, false, false, false}));
  });
}

}  // namespace float8_gather_test
}  // namespace accelerate
