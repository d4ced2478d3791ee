// full_parameters() shows what optimizers step on, in full precision, and keeps
// exactly what is changed there, however a model is divided and rounded.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace full_parameters_test {

using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using torch::Tensor;
namespace nn = torch::nn;

constexpr std::int64_t kWidth = 96;  // large enough for messages of their own

struct NetImpl : nn::Module {
  explicit NetImpl(at::ScalarType dtype = at::kFloat)
      : up(kWidth, 100), down(100, kWidth) {
    register_module("up", up);
    register_module("down", down);
    norm =
        register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    // A few rows, a number, nothing, and a second name.
    few = register_parameter("few", torch::zeros({2, 3}));
    number = register_parameter("number", torch::zeros({}));
    none = register_parameter("none", torch::zeros({0, 4}));
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (Tensor& parameter : parameters()) {
      const Tensor wave = torch::sin(
          torch::arange(parameter.numel(), torch::kDouble) + ++phase);
      parameter.copy_((wave * 0.1 + 0.2).view(parameter.sizes()));
    }
    to(dtype);
    few = named_parameters()["few"];
    number = named_parameters()["number"];
    register_parameter("again", up->weight);
  }
  Tensor forward(const Tensor& x) {
    seen = up->weight.scalar_type();
    if (fails) throw std::runtime_error("as the test wanted");
    const Tensor h = down(torch::tanh(up(norm(x) * number)));
    return h + few.sum() + none.sum();
  }
  nn::Linear up, down;
  nn::LayerNorm norm = nullptr;
  Tensor few, number, none;
  at::ScalarType seen = at::kFloat;
  bool fails = false;
};
TORCH_MODULE(Net);

struct Case {
  std::string name;
  int num_ranks = 2;
  AcceleratorOptions options = {};
  /// The dtypes of the model, and of what full_parameters() shows.
  at::ScalarType stored = at::kFloat;
  at::ScalarType shown = at::kFloat;
  /// The dtype that the prepared model's forward sees.
  at::ScalarType computed = at::kBFloat16;
};

FullyShardedDataParallelOptions sharding() {
  return FullyShardedDataParallelOptions();
}

AcceleratorOptions sharded(
    FullyShardedDataParallelOptions options = sharding(),
    Precision precision = Precision::bf16) {
  return {.mixed_precision = precision, .parallel = {.fully_sharded = options}};
}

AcceleratorOptions zero(int stage) {
  return {
      .mixed_precision = Precision::bf16,
      .parallel = {
          .deepspeed =
              DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = stage}}};
}

AcceleratorOptions
on_mesh(AcceleratorOptions options, int replicate, int shard, int tensor) {
  options.parallel.replicate = replicate;
  options.parallel.shard = shard;
  options.parallel.tensor = tensor;
  if (tensor > 1) {
    options.parallel.parallelize_plan =
        ParallelizePlan{{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}};
  }
  return options;
}

AcceleratorOptions with_masters(AcceleratorOptions options = {}) {
  options.mixed_precision = Precision::bf16;
  options.master_weights = true;
  return options;
}

std::vector<Case> cases() {
  FullyShardedDataParallelOptions offloaded = sharding(), grouped = sharding(),
                                  wrapped = sharding();
  offloaded.cpu_offload = true;
  grouped.fsdp_version = 2;
  grouped.reshard_after_forward = 2;
  wrapped.transformer_cls_names_to_wrap = {"torch::nn::LinearImpl"};
  AcceleratorOptions fp8 = sharded(sharding(), Precision::fp8);
  fp8.fp8_recipe = AORecipeKwargs{
      .module_filter_func = [](const std::string&, const nn::Module&) {
        return true;
      }};
  return {
      {.name = "bf16", .options = sharded()},
      {.name = "three ranks", .num_ranks = 3, .options = sharded()},
      {.name = "fp16",
       .options = sharded(sharding(), Precision::fp16),
       .computed = at::kHalf},
      {.name = "no",
       .options = sharded(sharding(), Precision::no),
       .computed = at::kFloat},
      {.name = "fp8", .options = fp8},
      {.name = "double",
       .options = sharded(),
       .stored = at::kDouble,
       .shown = at::kDouble},
      {.name = "bf16 model", .options = sharded(), .stored = at::kBFloat16},
      {.name = "ZeRO-1", .options = zero(1)},
      {.name = "ZeRO-2", .num_ranks = 3, .options = zero(2)},
      {.name = "ZeRO-3", .options = zero(3)},
      {.name = "offloaded", .options = sharded(offloaded)},
      {.name = "wrapped", .options = sharded(wrapped)},
      {.name = "reshard group", .num_ranks = 4, .options = sharded(grouped)},
      {.name = "hybrid",
       .num_ranks = 4,
       .options = on_mesh(sharded(), 2, 2, 1)},
      {.name = "tensor x shard",
       .num_ranks = 4,
       .options = on_mesh(sharded(), 1, 2, 2)},
      {.name = "tensor x ZeRO-1",
       .num_ranks = 4,
       .options = on_mesh(zero(1), 1, 2, 2)},
      {.name = "masters, one rank",
       .num_ranks = 1,
       .options = with_masters(),
       .stored = at::kBFloat16},
      {.name = "masters of replicas",
       .options = with_masters(),
       .stored = at::kBFloat16},
      {.name = "masters of slices",
       .options = with_masters(on_mesh({}, 1, 1, 2)),
       .stored = at::kBFloat16},
  };
}

using Weights = std::map<std::string, Tensor>;

Weights weights_of(const nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

void expect_equal(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
}

Tensor inputs(at::ScalarType dtype = at::kFloat) {
  return torch::sin(torch::arange(4 * kWidth, torch::kFloat))
      .view({4, kWidth})
      .to(dtype);
}

using Body = std::function<void(
    const Case&,
    const Accelerator&,
    const Model<NetImpl>&,
    const Optimizer&,
    Net&)>;

void in_all_cases(const Body& body) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    run_on_ranks(each.num_ranks, [&](const WorldOptions& world) {
      AcceleratorOptions options = each.options;
      options.world = world;
      const Accelerator accelerator(options);
      Net net(each.stored);
      std::vector<Tensor> parameters;
      for (const auto& item : net->named_parameters())
        if (item.key() != "again") parameters.push_back(item.value());
      torch::optim::SGD sgd(parameters, 0.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      body(each, accelerator, model, optimizer, net);
    });
  }
}

// The net of one process, in the dtypes that are shown. A number is never
// sharded, and so has no other precision than its own, or its master's.
Net alone_of(const Case& each) {
  Net net(each.stored);
  net->to(each.shown);
  if (!each.options.master_weights)
    net->number.set_data(net->number.detach().to(each.stored));
  return net;
}

Weights unsharded(const Case& each) { return weights_of(*alone_of(each)); }

// An edit that 16 bits would round away or to something else.
void shrink(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    if (item.key() == "down.weight") item.value().mul_(0.999);
    if (item.key() == "up.weight") item.value()[3][5] += 1e-4;
    if (item.key() == "number") item.value().add_(1e-5);
  }
}

TEST(FullParameters, KeepsExactlyWhatIsChanged) {
  in_all_cases([](const Case& each,
                  const Accelerator&,
                  const Model<NetImpl>& model,
                  const Optimizer&,
                  Net& net) {
    Net alone = alone_of(each);
    for (int i = 0; i < 5; ++i) {
      const auto scope = model.full_parameters();
      expect_equal(weights_of(*net), weights_of(*alone));
      shrink(*net);
      shrink(*alone);
    }
    const auto scope = model.full_parameters();
    expect_equal(weights_of(*net), weights_of(*alone));
    EXPECT_TRUE(net->named_parameters()["again"].is_same(net->up->weight));
  });
}

TEST(FullParameters, LeaveWhatIsOnlyRead) {
  in_all_cases([](const Case& each,
                  const Accelerator& accelerator,
                  const Model<NetImpl>& model,
                  const Optimizer& optimizer,
                  Net& net) {
    for (int i = 0; i < 2; ++i) {
      // A rate of 0 leaves the weights, whatever the gradients.
      accelerator.backward(model(inputs(each.stored)).sum());
      optimizer.step();
      optimizer.zero_grad();
      const auto scope = model.full_parameters();
      const auto nested = model.full_parameters();
      expect_equal(weights_of(*net), unsharded(each));
    }
  });
}

TEST(FullParameters, LetForwardsComputeAsEver) {
  in_all_cases([](const Case& each,
                  const Accelerator& accelerator,
                  const Model<NetImpl>& model,
                  const Optimizer&,
                  Net& net) {
    const torch::NoGradGuard no_grad;
    const Tensor x = inputs(each.stored);
    const Tensor before = model(x);
    EXPECT_EQ(net->seen, each.computed);
    Tensor inside;
    const bool is_tensor_parallel = each.options.parallel.tensor > 1;
    const auto expect_same = [&](const Tensor& found, const Tensor& expected) {
      // Inside, layers are not divided, so that sums have another order.
      EXPECT_TRUE(
          is_tensor_parallel ? torch::allclose(found, expected, 2e-2, 2e-2)
                             : torch::equal(found, expected));
    };
    {
      const auto scope = model.full_parameters();
      expect_same(model(x), before);
      EXPECT_EQ(net->seen, each.computed);
      EXPECT_EQ(net->up->weight.scalar_type(), each.shown);
      net->fails = true;
      EXPECT_THROW(model(x), std::runtime_error);
      net->fails = false;
      EXPECT_EQ(net->up->weight.scalar_type(), each.shown);
      net->up->weight.mul_(2);
      inside = model(x);
      EXPECT_FALSE(torch::equal(inside, before));
      expect_error<ConfigError>(
          [&] {
            const torch::AutoGradMode with_gradients(true);
            accelerator.backward(model(x).sum());
          },
          "full_parameters() lives");
    }
    expect_same(model(x), inside);
    EXPECT_EQ(net->seen, each.computed);
    const auto scope = model.full_parameters();
    Weights expected = unsharded(each);
    for (const char* const name : {"up.weight", "again"})
      expected[name].mul_(2);
    expect_equal(weights_of(*net), expected);
  });
}

TEST(FullParameters, ShowALoadedCheckpoint) {
  for (const char* const name : {"bf16", "ZeRO-1", "tensor x shard"}) {
    const TemporaryDirectory directory;
    in_all_cases([&](const Case& each,
                     const Accelerator& accelerator,
                     const Model<NetImpl>& model,
                     const Optimizer&,
                     Net& net) {
      if (each.name != name) return;
      accelerator.save_state((directory / "saved").string());
      {
        const auto scope = model.full_parameters();
        shrink(*net);
      }
      {
        const auto scope = model.full_parameters();
        accelerator.load_state((directory / "saved").string());
      }
      const auto scope = model.full_parameters();
      expect_equal(weights_of(*net), unsharded(each));
    });
  }
}

TEST(FullParameters, TakeDataThatTheProgramReplaces) {
  in_all_cases([](const Case& each,
                  const Accelerator&,
                  const Model<NetImpl>& model,
                  const Optimizer&,
                  Net& net) {
    // Where nothing is rounded, set_data() is an error of its own.
    if (each.computed == each.shown) return;
    Weights expected = unsharded(each);
    expected["down.weight"].mul_(0.999);
    {
      const auto scope = model.full_parameters();
      net->down->weight.set_data(expected["down.weight"].clone());
    }
    const auto scope = model.full_parameters();
    expect_equal(weights_of(*net), expected);
  });
}

// Weights of slices are loaded into the masters, those that ranks have in full
// into the model.
TEST(MasterWeights, AreLoadedIntoTheModel) {
  for (const bool has_optimizer : {false, true}) {
    const TemporaryDirectory directory;
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options = with_masters(on_mesh({}, 1, 1, 2));
      options.world = world;
      const Accelerator accelerator(options);
      Net net(at::kBFloat16);
      auto model = accelerator.prepare(net);
      torch::optim::SGD sgd(net->parameters(), 0.0);
      if (has_optimizer) static_cast<void>(accelerator.prepare(sgd));
      const Tensor x = inputs(at::kBFloat16);
      const torch::NoGradGuard no_grad;
      const Tensor before = model(x);
      accelerator.save_model(model, (directory / "saved").string());
      {
        const auto scope = model.full_parameters();
        for (Tensor& parameter : net->parameters()) parameter.zero_();
      }
      EXPECT_EQ(model(x).abs().sum().item<double>(), 0);
      accelerator.load_model(model, (directory / "saved").string());
      EXPECT_TRUE(torch::equal(model(x), before));
      if (!has_optimizer) static_cast<void>(accelerator.prepare(sgd));
      EXPECT_TRUE(torch::equal(model(x), before));
    });
  }
}

TEST(FullParameters, ShowMastersBeforeThereIsAnOptimizer) {
  run_on_ranks(2, [](const WorldOptions& world) {
    AcceleratorOptions options = with_masters();
    options.world = world;
    const Accelerator accelerator(options);
    Net net(at::kBFloat16), alone(at::kBFloat16);
    alone->to(at::kFloat);
    auto model = accelerator.prepare(net);
    {
      const auto scope = model.full_parameters();
      shrink(*net);
      shrink(*alone);
    }
    {
      const torch::NoGradGuard no_grad;
      net->few.fill_(3);
      alone->named_parameters()["few"].fill_(3);
    }
    torch::optim::SGD sgd(net->parameters(), 0.0);
    auto optimizer = accelerator.prepare(sgd);
    const auto scope = model.full_parameters();
    expect_equal(weights_of(*net), weights_of(*alone));
  });
}

}  // namespace full_parameters_test
}  // namespace accelerate
