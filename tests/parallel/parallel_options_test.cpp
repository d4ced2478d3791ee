// What each option of a parallel technique changes.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/bucket_hook.h>

#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace parallel_options_test {

using testing::expect_error;
using testing::has_memory;
using testing::run_on_ranks;
using torch::Tensor;
namespace nn = torch::nn;

// Five layers of 144, 136, 72, 72 and 72 parameters.
struct NetImpl : nn::Module {
  NetImpl() {
    const std::vector<std::int64_t> widths{8, 16, 8, 8, 8, 8};
    for (std::size_t i = 0; i + 1 < widths.size(); ++i)
      layers->push_back(nn::Linear(widths[i], widths[i + 1]));
    register_module("layers", layers);
  }
  Tensor forward(Tensor h) {
    most_whole = 0;
    saved.clear();
    inputs.clear();
    for (const auto& layer : *layers) {
      inputs.push_back(h.storage().getWeakStorageImpl());
      const Tensor y = torch::tanh(layer->as<nn::Linear>()->forward(h));
      saved.push_back(y.storage().getWeakStorageImpl());
      h = y * y;
      most_whole = std::max(most_whole, num_whole());
    }
    return h;
  }
  [[nodiscard]] int num_whole() const {
    return static_cast<int>(
        std::count_if(layers->begin(), layers->end(), [](const auto& layer) {
          return has_memory(layer->template as<nn::Linear>()->weight);
        }));
  }
  // One letter per layer: whether backward keeps its activation (k) or
  // recomputes it (r).
  [[nodiscard]] std::string activations() const { return letters_of(saved); }

  using Storages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;
  static std::string letters_of(const Storages& storages) {
    std::string letters;
    for (const auto& storage : storages)
      letters += storage.expired() ? 'r' : 'k';
    return letters;
  }

  nn::ModuleList layers;
  int most_whole = 0;
  Storages saved;
  Storages inputs;
};
TORCH_MODULE(Net);

// Numbers of layers whose weights are full on a rank.
struct WholeLayers {
  int before = 0;
  int in_forward = 0;
  int after_forward = 0;
  int after_backward = 0;

  bool operator==(const WholeLayers&) const = default;
};

void PrintTo(const WholeLayers& whole, std::ostream* out) {
  *out << whole.before << " before a forward, " << whole.in_forward
       << " inside, " << whole.after_forward << " after, "
       << whole.after_backward << " after the backward";
}

// Counts layers once the execution order is known.
WholeLayers whole_layers(const FullyShardedDataParallelOptions& options) {
  WholeLayers found;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.fully_sharded = options}, .world = world});
    Net net;
    const auto model = accelerator.prepare(net);
    WholeLayers own;
    for (int step = 0; step < 3; ++step) {
      own.before = net->num_whole();
      const Tensor loss = model(torch::ones({2, 8})).sum();
      own.in_forward = net->most_whole;
      own.after_forward = net->num_whole();
      accelerator.backward(loss);
      own.after_backward = net->num_whole();
    }
    if (accelerator.is_main_process()) found = own;
  });
  return found;
}

bool is_one_of_the_first_two(const std::string& name, const nn::Module&) {
  return name == "layers.0" || name == "layers.1";
}

// The layer that backward uses first stays unsharded after forward.
TEST(FullyShardedOptions, DecideWhichLayersAreWholeAndWhen) {
  using enum ShardingStrategy;
  EXPECT_EQ(whole_layers({}), (WholeLayers{0, 1, 1, 0}));
  EXPECT_EQ(
      whole_layers({.sharding_strategy = shard_grad_op}),
      (WholeLayers{0, 5, 5, 0}));
  EXPECT_EQ(
      whole_layers({.sharding_strategy = no_shard}), (WholeLayers{5, 5, 5, 5}));
  EXPECT_EQ(
      whole_layers({.fsdp_version = 2, .reshard_after_forward = false}),
      (WholeLayers{0, 5, 5, 0}));
  EXPECT_EQ(
      whole_layers({.ignored_modules = "layers\\.[14]"}),
      (WholeLayers{2, 3, 3, 2}));
}

// The layers of a unit are unsharded together.
TEST(FullyShardedOptions, DecideWhichLayersAreOneUnit) {
  const auto of = [](const FullyShardedDataParallelOptions& options) {
    return whole_layers(options).in_forward;
  };
  using enum AutoWrapPolicy;
  EXPECT_EQ(of({}), 1);
  EXPECT_EQ(of({.auto_wrap_policy = no_wrap}), 5);
  EXPECT_EQ(
      of({.auto_wrap_policy = transformer_based_wrap,
          .transformer_cls_names_to_wrap = std::vector<std::string>{"Linear"}}),
      1);
  EXPECT_EQ(
      of({.auto_wrap_policy = size_based_wrap, .min_num_params = 100}), 3);
  EXPECT_EQ(
      of({.auto_wrap_policy = size_based_wrap, .min_num_params = 140}), 4);
  EXPECT_EQ(of({.custom_auto_wrap_policy = is_one_of_the_first_two}), 3);
}

// Which layers backward recomputes, and which layers' inputs, with options of
// the Accelerator or of one model.
struct Recomputed {
  std::string layers;
  std::string inputs;
};

Recomputed recomputed_with_inputs(
    const ParallelOptions& parallel,
    const std::optional<ModelOptions>& of_model = std::nullopt) {
  const Accelerator accelerator(
      {.parallel = parallel,
       .world = {.rank = 0, .size = 1, .device = at::kCPU}});
  Net net;
  const auto model = of_model
      ? accelerator.prepare(with_options(net, *of_model))
      : accelerator.prepare(net);
  const Tensor loss = model(torch::ones({2, 8})).sum();
  Recomputed found{net->activations(), NetImpl::letters_of(net->inputs)};
  accelerator.backward(loss);
  return found;
}

std::string recomputed(
    const ParallelOptions& parallel,
    const std::optional<ModelOptions>& of_model = std::nullopt) {
  return recomputed_with_inputs(parallel, of_model).layers;
}

TEST(ActivationCheckpointingOptions, DecideWhatIsComputedAgain) {
  const auto with = [](ActivationCheckpointingOptions options) {
    const std::string found = recomputed({.activation_checkpointing = options});
    EXPECT_EQ(
        recomputed({}, ModelOptions{.activation_checkpointing = options}),
        found);
    return found;
  };
  using enum AutoWrapPolicy;
  EXPECT_EQ(recomputed({}), "kkkkk");
  EXPECT_EQ(with({}), "rrrrr");
  EXPECT_EQ(
      with(
          {.auto_wrap_policy = transformer_based_wrap,
           .transformer_cls_names_to_wrap = {"Linear"}}),
      "rrrrr");
  EXPECT_EQ(
      with({.auto_wrap_policy = size_based_wrap, .min_num_params = 100}),
      "rrkkk");
  EXPECT_EQ(
      with({.auto_wrap_policy = size_based_wrap, .min_num_params = 140}),
      "rkkkk");
  EXPECT_EQ(
      with({.custom_auto_wrap_policy = is_one_of_the_first_two}), "rrkkk");
  EXPECT_EQ(
      recomputed(
          {.fully_sharded =
               FullyShardedDataParallelOptions{
                   .activation_checkpointing = true}}),
      "rrrrr");
  EXPECT_EQ(
      recomputed(
          {.megatron_lm = MegatronLMOptions{.recompute_activations = true}}),
      "rrrrr");
  const auto block = [](int num_layers) {
    return recomputed(
        {.megatron_lm = MegatronLMOptions{
             .recompute_activations = true,
             .recompute_method = "block",
             .recompute_num_layers = num_layers}});
  };
  EXPECT_EQ(block(0), "kkkkk");
  EXPECT_EQ(block(3), "rrrkk");
  EXPECT_EQ(block(9), "rrrrr");
  const auto inputs = [](int num_layers) {
    const Recomputed found = recomputed_with_inputs(
        {.megatron_lm = MegatronLMOptions{
             .recompute_activations = true,
             .recompute_num_layers = num_layers}});
    EXPECT_EQ(found.layers, "rrrrr");
    return found.inputs.substr(1);  // the first is the program's own
  };
  EXPECT_EQ(inputs(1), "kkkk");
  EXPECT_EQ(inputs(2), "rkrk");
  EXPECT_EQ(inputs(5), "rrrr");
}

// What each of two ranks keeps of a model between steps.
struct Kept {
  bool full_weights = true;
  bool full_optimizer_state = true;

  bool operator==(const Kept&) const = default;
};

void PrintTo(const Kept& kept, std::ostream* out) {
  *out << (kept.full_weights ? "full" : "sharded") << " weights, "
       << (kept.full_optimizer_state ? "full" : "sharded")
       << " optimizer state";
}

Kept kept(const ParallelOptions& parallel) {
  Kept found;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = parallel, .world = world});
    nn::Linear net(4, 4);
    torch::optim::Adam adam(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::ones({1, 4})).sum());
    optimizer.step();
    const Tensor& own = adam.param_groups()[0].params()[0];
    const auto& state = static_cast<const torch::optim::AdamParamState&>(
        *adam.state().at(own.unsafeGetTensorImpl()));
    if (!accelerator.is_main_process()) return;
    found = {has_memory(net->weight), state.exp_avg().size(0) == 4};
  });
  return found;
}

TEST(ParallelOptions, DecideWhatIsSharded) {
  const Kept everything{true, true}, no_state{true, false},
      nothing{false, false};
  const auto fsdp = [](ShardingStrategy strategy) {
    return ParallelOptions{
        .fully_sharded =
            FullyShardedDataParallelOptions{.sharding_strategy = strategy}};
  };
  const auto degrees = [](const ParallelismConfig& config) {
    return ParallelOptions{.parallelism_config = config};
  };
  const auto deepspeed = [](int stage) {
    return ParallelOptions{.deepspeed = DeepSpeedOptions{.zero_stage = stage}};
  };
  const auto megatron = [](const MegatronLMOptions& options) {
    return ParallelOptions{.megatron_lm = options};
  };
  EXPECT_EQ(kept({}), everything);
  EXPECT_EQ(kept({.replicate = 2}), everything);
  EXPECT_EQ(kept({.shard = 2}), nothing);
  EXPECT_EQ(kept(degrees({.dp_replicate_size = 2})), everything);
  EXPECT_EQ(kept(degrees({.dp_shard_size = 2})), nothing);
  EXPECT_EQ(kept(fsdp(ShardingStrategy::full_shard)), nothing);
  EXPECT_EQ(kept(fsdp(ShardingStrategy::shard_grad_op)), nothing);
  EXPECT_EQ(kept(fsdp(ShardingStrategy::no_shard)), everything);
  EXPECT_EQ(kept(deepspeed(0)), everything);
  EXPECT_EQ(kept(deepspeed(1)), no_state);
  EXPECT_EQ(kept(deepspeed(2)), no_state);
  EXPECT_EQ(kept(deepspeed(3)), nothing);
  EXPECT_EQ(kept(megatron({})), everything);
  EXPECT_EQ(kept(megatron({.use_distributed_optimizer = true})), no_state);
  EXPECT_EQ(kept(megatron({.use_custom_fsdp = true})), nothing);
}

// Every way to give a degree, with two ranks along its axis.
TEST(ParallelOptions, DecideTheDegreesOfTheMesh) {
  const auto degrees = [](const ParallelismConfig& config) {
    return ParallelOptions{
        .parallelize_plan = ParallelizePlan{}, .parallelism_config = config};
  };
  const auto megatron = [](const MegatronLMOptions& options) {
    return ParallelOptions{.megatron_lm = options};
  };
  const std::vector<std::pair<ParallelOptions, Axis>> given{
      {{.pipeline = 2}, Axis::pipeline},
      {{.replicate = 2}, Axis::replicate},
      {{.shard = 2}, Axis::shard},
      {{.tensor = 2, .parallelize_plan = ParallelizePlan{}}, Axis::tensor},
      {{.context = 2}, Axis::context},
      {degrees({.dp_replicate_size = 2}), Axis::replicate},
      {degrees({.dp_shard_size = 2}), Axis::shard},
      {degrees({.tp_size = 2}), Axis::tensor},
      {degrees({.cp_size = 2}), Axis::context},
      {degrees({.sp_size = 2}), Axis::context},
      {megatron({.tp_degree = 2}), Axis::tensor},
      {megatron({.pp_degree = 2}), Axis::pipeline},
      {megatron({.context_parallel_size = 2}), Axis::context},
  };
  for (std::size_t i = 0; i < given.size(); ++i) {
    SCOPED_TRACE(i);
    run_on_ranks(2, [&](const WorldOptions& world) {
      const auto& [parallel, axis] = given[i];
      const Accelerator accelerator({.parallel = parallel, .world = world});
      EXPECT_EQ(accelerator.mesh().degree(axis), 2);
    });
  }
}

TEST(ParallelOptions, AreRefusedWhereNoTechniqueDoesWhatTheyAsk) {
  const auto degrees = [](const ParallelismConfig& config) {
    return ParallelOptions{.parallelism_config = config};
  };
  const auto megatron = [](const MegatronLMOptions& options) {
    return ParallelOptions{.megatron_lm = options};
  };
  const std::vector<std::pair<ParallelOptions, std::string>> refused{
      {{.tensor = 2}, "tensor was asked for, but nothing says which"},
      {degrees({.tp_size = 2}), "tensor was asked for"},
      {degrees({.cp_backend = "other"}), "cp_backend is \"other\""},
      {degrees({.sp_backend = "other"}), "sp_backend is \"other\""},
      {megatron({.expert_model_parallel_size = 3}),
       "set expert to a divisor of 2"},
      {megatron({.expert_tensor_parallel_size = 2}),
       "expert_tensor_parallel_size is 2, but tp_degree is 1"},
  };
  for (const auto& [parallel, why] : refused) {
    expect_error<ConfigError>(
        [&, &parallel = parallel] {
          run_on_ranks(2, [&](const WorldOptions& world) {
            const Accelerator accelerator(
                {.parallel = parallel, .world = world});
          });
        },
        why);
  }
}

// Multiplies by its weight, and notes the dtypes.
struct ScaleImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    input_dtype = x.scalar_type();
    weight_dtype = weight.scalar_type();
    buffer_dtype = mean.scalar_type();
    return (x.to(weight.scalar_type()) * weight);
  }
  Tensor weight = register_parameter("weight", torch::ones({2}));
  Tensor mean = register_buffer("mean", torch::zeros({2}));
  at::ScalarType input_dtype{}, weight_dtype{}, buffer_dtype{};
};
TORCH_MODULE(Scale);

// Dtypes of the input, weight, buffer and output of a forward on two ranks, and
// the ranks' mean of the gradients 1.001 and 3.
struct Lowered {
  at::ScalarType input = at::kFloat;
  at::ScalarType weight = at::kFloat;
  at::ScalarType buffer = at::kFloat;
  at::ScalarType output = at::kFloat;
  float gradient = 2.0005F;

  bool operator==(const Lowered&) const = default;
};

void PrintTo(const Lowered& lowered, std::ostream* out) {
  *out << lowered.input << " input, " << lowered.weight << " weight, "
       << lowered.buffer << " buffer, " << lowered.output << " output, "
       << lowered.gradient << " gradient";
}

Lowered lowered(const MixedPrecisionPolicy& policy, int version = 1) {
  Lowered found;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const FullyShardedDataParallelOptions options{
        .fsdp_version = version, .mixed_precision_policy = policy};
    const Accelerator accelerator(
        {.parallel = {.fully_sharded = options}, .world = world});
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const float x = accelerator.is_main_process() ? 1.001F : 3.0F;
    const Tensor output = model(torch::full({2}, x));
    accelerator.backward(output.sum());
    if (!accelerator.is_main_process()) return;
    found = {
        net->input_dtype,
        net->weight_dtype,
        net->buffer_dtype,
        output.scalar_type(),
        sgd.param_groups()[0].params()[0].grad().item<float>()};
  });
  return found;
}

TEST(MixedPrecisionPolicy, DecidesEachDtype) {
  constexpr auto bf16 = FloatType::bf16, fp32 = FloatType::fp32;
  constexpr at::ScalarType f = at::kFloat, b = at::kBFloat16;
  EXPECT_EQ(lowered({}), Lowered());
  EXPECT_EQ(lowered({.param_dtype = bf16}), (Lowered{b, b, f, b, 2}));
  EXPECT_EQ(lowered({.reduce_dtype = bf16}), (Lowered{f, f, f, f, 2}));
  EXPECT_EQ(lowered({.buffer_dtype = bf16}), (Lowered{f, f, b, f, 2.0005F}));
  EXPECT_EQ(lowered({.output_dtype = bf16}), (Lowered{f, f, f, b, 2.0005F}));
  EXPECT_EQ(
      lowered({.param_dtype = bf16, .output_dtype = fp32}),
      (Lowered{b, b, f, f, 2}));
  EXPECT_EQ(
      lowered({.param_dtype = bf16, .cast_root_forward_inputs = false}),
      (Lowered{f, b, f, b, 2}));
  EXPECT_EQ(
      lowered({.param_dtype = bf16, .cast_forward_inputs = false}, 2),
      (Lowered{f, b, f, b, 2}));
}

// Four parameters of 40 bytes each.
struct RowsImpl : nn::Module {
  RowsImpl() {
    for (int i = 0; i < 4; ++i)
      rows.push_back(
          register_parameter("row" + std::to_string(i), torch::ones({10})));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const Tensor& row : rows) h = h * row;
    return h;
  }
  std::vector<Tensor> rows;
};
TORCH_MODULE(Rows);

// The number of buckets in the last of several backward passes.
int num_buckets(const ReplicateOptions& options) {
  int found = 0;
  run_on_ranks(2, [&](const WorldOptions& world) {
    int count = 0;
    ReplicateOptions own = options;
    own.bucket_hook = std::make_shared<BucketHook>(BucketHook{
        .reduce = [&](c10d::GradBucket& bucket, const BucketContext& ranks) {
          ++count;
          std::vector<Tensor> tensors{bucket.getBuffer()};
          return ranks.process_group.allreduce(tensors)->getFuture();
        }});
    const Accelerator accelerator(
        {.parallel = {.replicate_options = own}, .world = world});
    Rows net;
    const auto model = accelerator.prepare(net);
    for (int step = 0; step < 3; ++step) {
      count = 0;
      accelerator.backward(model(torch::ones({10})).sum());
    }
    if (accelerator.is_main_process()) found = count;
  });
  return found;
}

TEST(ReplicateOptions, DecideTheSizesOfBuckets) {
  EXPECT_EQ(num_buckets({}), 1);
  EXPECT_EQ(num_buckets({.first_bucket_bytes = 40}), 2);
  EXPECT_EQ(num_buckets({.bucket_bytes = 40, .first_bucket_bytes = 40}), 4);
  EXPECT_EQ(num_buckets({.bucket_bytes = 80, .first_bucket_bytes = 40}), 3);
}

TEST(ReplicateOptions, DecideWhetherGradientsAreViewsOfBuckets) {
  for (const bool views : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel =
               {.replicate_options = {.gradient_as_bucket_view = views}},
           .world = world});
      Rows net;
      const auto model = accelerator.prepare(net);
      accelerator.backward(model(torch::ones({10})).sum());
      EXPECT_EQ(net->rows[0].grad().is_alias_of(net->rows[1].grad()), views);
    });
  }
}

TEST(ReplicateOptions, DecideWhetherBuffersAreSent) {
  for (const bool sends : {true, false}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.replicate_options = {.broadcast_buffers = sends}},
           .world = world});
      nn::BatchNorm1d net(2);
      const auto model = accelerator.prepare(net);
      const double rank = accelerator.process_index();
      accelerator.backward(model(torch::full({4, 2}, rank + 1)).sum());
      EXPECT_FLOAT_EQ(
          net->running_mean[0].item<float>(),
          sends ? 0.1F : static_cast<float>(0.1 * (rank + 1)));
    });
  }
}

}  // namespace parallel_options_test
}  // namespace accelerate
