// Models of many kinds, sharded over N ranks, end with the same weights as in
// one process with the same samples.
#include <map>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace shard_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 3;
constexpr std::int64_t kBatch = 4;  // of one rank in one micro-step

/// A model whose forward takes a batch and returns a loss.
struct Task : nn::Module {
  virtual Tensor loss(const Tensor& x) = 0;
  [[nodiscard]] virtual Tensor batch() const {
    return torch::randn({kBatch, 6});
  }
};

struct MlpTask : Task {
  MlpTask() {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(nn::Sequential(
          nn::Linear(6, 6),
          nn::LayerNorm(nn::LayerNormOptions({6})),
          nn::GELU()));
    }
    register_module("layers", layers);
    register_module("head", head);
    scale = register_parameter("scale", torch::ones({}));
  }
  Tensor loss(const Tensor& x) override {
    Tensor h = x;
    for (const auto& layer : *layers)
      h = h + layer->as<nn::Sequential>()->forward(h);
    return (head(h) * scale).pow(2).mean();
  }
  nn::ModuleList layers;
  nn::Linear head{6, 3};
  Tensor scale;
};

// Each micro-batch is normalised separately, on any rank.
struct ConvTask : Task {
  ConvTask() {
    register_module("layers", layers);
    register_module("head", head);
  }
  Tensor loss(const Tensor& x) override {
    return head(layers->forward(x).flatten(1)).pow(2).mean();
  }
  [[nodiscard]] Tensor batch() const override {
    return torch::randn({kBatch, 2, 6, 6});
  }
  nn::Sequential layers{
      nn::Conv2d(2, 5, 3),
      nn::BatchNorm2d(5),
      nn::ReLU(),
      nn::Conv2d(nn::Conv2dOptions(5, 3, 3).bias(false)),
      nn::BatchNorm2d(3)};
  nn::Linear head{12, 3};
};

// Its weights are large enough for separate messages.
struct WideTask : Task {
  WideTask() {
    register_module("in", in);
    register_module("out", out);
  }
  Tensor loss(const Tensor& x) override {
    return out(torch::relu(in(x))).pow(2).mean();
  }
  nn::Linear in{6, 1501};
  nn::Linear out{1501, 7};
};

struct LstmTask : Task {
  LstmTask() {
    register_module("lstm", lstm);
    register_module("head", head);
  }
  Tensor loss(const Tensor& x) override {
    const auto [states, last] = lstm(x.view({2, kBatch / 2, 6}));
    return head(states).pow(2).mean();
  }
  nn::LSTM lstm{nn::LSTMOptions(6, 5).num_layers(2)};
  nn::Linear head{5, 2};
};

struct TransformerTask : Task {
  TransformerTask() {
    for (int i = 0; i < 2; ++i) {
      layers->push_back(nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(12).dropout(
              0)));
    }
    register_module("layers", layers);
  }
  Tensor loss(const Tensor& x) override {
    Tensor h = x.view({2, kBatch / 2, 6});
    for (const auto& layer : *layers)
      h = layer->as<nn::TransformerEncoderLayer>()->forward(h);
    return h.pow(2).mean();
  }
  nn::ModuleList layers;
};

struct AttentionImpl : nn::Module {
  AttentionImpl() {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("mlp", mlp);
  }
  Tensor forward(const Tensor& x) {
    const auto chunks = qkv(norm(x)).chunk(3, -1);
    const Tensor scores =
        torch::matmul(chunks[0], chunks[1].transpose(1, 2)) / std::sqrt(8.0);
    const Tensor mask = torch::ones({x.size(1), x.size(1)}).tril() == 0;
    const Tensor mixed =
        torch::matmul(scores.masked_fill(mask, -1e9).softmax(-1), chunks[2]);
    return x + mlp->forward(x + mixed);
  }
  nn::LayerNorm norm{nn::LayerNormOptions({8})};
  nn::Linear qkv{8, 24};
  nn::Sequential mlp{nn::Linear(8, 16), nn::GELU(), nn::Linear(16, 8)};
};
TORCH_MODULE(Attention);

// The embedding is also the head.
struct GptTask : Task {
  GptTask() {
    register_module("tokens", tokens);
    for (int i = 0; i < 3; ++i) blocks->push_back(Attention());
    register_module("blocks", blocks);
    register_module("norm", norm);
  }
  Tensor loss(const Tensor& x) override {
    const Tensor inputs = x.narrow(1, 0, 5), targets = x.narrow(1, 1, 5);
    Tensor h = tokens(inputs);
    for (const auto& block : *blocks) h = block->as<Attention>()->forward(h);
    const Tensor logits = torch::matmul(norm(h), tokens->weight.t());
    return nn::functional::cross_entropy(
        logits.reshape({-1, 11}), targets.reshape({-1}));
  }
  [[nodiscard]] Tensor batch() const override {
    return torch::randint(11, {kBatch, 6});
  }
  nn::Embedding tokens{11, 8};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nn::LayerNormOptions({8})};
};

// Modules that are used twice, in a different order or not at all, frozen
// modules, and a parameter used outside its module.
struct OddTask : Task {
  OddTask() {
    for (int i = 0; i < 5; ++i) layers->push_back(nn::Linear(6, 6));
    register_module("layers", layers);
    layers[2]->as<nn::Linear>()->weight.set_requires_grad(false);
    for (Tensor& parameter : layers[4]->parameters())
      parameter.set_requires_grad(false);
  }
  Tensor loss(const Tensor& x) override {
    auto layer = [&](int i) {
      return layers[static_cast<std::size_t>(i)]->as<nn::Linear>();
    };
    Tensor h = torch::tanh(layer(3)->forward(x));
    h = torch::tanh(layer(0)->forward(h));
    h = torch::tanh(layer(4)->forward(h));
    h = torch::tanh(layer(0)->forward(h)) + layer(2)->weight.sum();
    return torch::tanh(layer(2)->forward(h)).pow(2).mean();
  }
  nn::ModuleList layers;
};

struct Kind {
  std::string name;
  std::function<std::shared_ptr<Task>()> make;
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"mlp", [] { return std::make_shared<MlpTask>(); }},
      {"conv", [] { return std::make_shared<ConvTask>(); }},
      {"wide", [] { return std::make_shared<WideTask>(); }},
      {"lstm", [] { return std::make_shared<LstmTask>(); }},
      {"transformer", [] { return std::make_shared<TransformerTask>(); }},
      {"gpt", [] { return std::make_shared<GptTask>(); }},
      {"odd", [] { return std::make_shared<OddTask>(); }}};
  return all;
}

using Weights = std::map<std::string, Tensor>;

Weights weights_of(const nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

// Batches of all ranks and micro-steps, in order of step, micro-step and rank.
std::vector<Tensor> all_batches(const Task& task, std::size_t count) {
  torch::manual_seed(5);
  std::vector<Tensor> batches;
  for (std::size_t i = 0; i < count; ++i) batches.push_back(task.batch());
  return batches;
}

torch::optim::AdamWOptions adamw() {
  // Gradients that are only rounding errors (of keys' biases) stay negligible.
  return torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-4);
}

std::shared_ptr<Task> first_model(const Kind& kind) {
  torch::manual_seed(3);
  return kind.make();
}

Weights train_alone(const Kind& kind, int num_ranks, int accumulation) {
  const auto task = first_model(kind);
  torch::optim::AdamW optimizer(task->parameters(), adamw());
  const auto per_step = static_cast<std::size_t>(num_ranks * accumulation);
  const auto batches = all_batches(*task, kSteps * per_step);
  for (std::size_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (std::size_t i = 0; i < per_step; ++i) {
      const Tensor loss = task->loss(batches[step * per_step + i]);
      (loss / static_cast<double>(per_step)).backward();
    }
    nn::utils::clip_grad_norm_(task->parameters(), 0.5);
    optimizer.step();
  }
  return weights_of(*task);
}

struct Variant {
  std::string name;
  ParallelOptions parallel;
};

Weights train_sharded(
    const Kind& kind,
    const Variant& variant,
    int num_ranks,
    int accumulation,
    bool clips = true,
    std::optional<Precision> precision = std::nullopt,
    bool is_fused = true) {
  const auto first = first_model(kind);
  const auto per_step = static_cast<std::size_t>(num_ranks * accumulation);
  const auto batches = all_batches(*first, kSteps * per_step);
  Weights end;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.mixed_precision = precision,
         .gradient_accumulation_steps = accumulation,
         .fused_linear = is_fused,
         .fused_optimizers = is_fused,
         .parallel = variant.parallel,
         .world = world});
    const auto task = std::shared_ptr<Task>(kind.make());
    if (accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      auto from = first->named_parameters();
      for (auto& item : task->named_parameters())
        item.value().copy_(from[item.key()]);
    }
    torch::optim::AdamW inner(task->parameters(), adamw());
    auto [model, optimizer] = accelerator.prepare(task, inner);
    const auto rank = static_cast<std::size_t>(accelerator.process_index());
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (int micro = 0; micro < accumulation; ++micro) {
        const auto scope = accelerator.accumulate(model);
        optimizer.zero_grad();
        Tensor batch = batches
            [step * per_step + static_cast<std::size_t>(micro * num_ranks) +
             rank];
        // Casts the batch as a forward's arguments would be; call() has none.
        if (precision && batch.is_floating_point())
          batch = batch.to(torch::kBFloat16);
        accelerator.backward(
            model.call([&](Task& module) { return module.loss(batch); }));
        if (clips && accelerator.sync_gradients())
          accelerator.clip_grad_norm_(model, 0.5);
        optimizer.step();
      }
    }
    Weights mine;
    const auto names = task->named_parameters();
    for (const auto& [name, tensor] : accelerator.get_state_dict(model)) {
      if (names.contains(name)) mine[name] = tensor.detach().clone();
    }
    if (accelerator.is_main_process()) end = std::move(mine);
  });
  return end;
}

void expect_near(
    const Weights& found,
    const Weights& expected,
    double tolerance,
    const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::allclose(found.at(name), tensor, tolerance, tolerance))
        << what << ": " << name << " differs by "
        << (found.at(name) - tensor).abs().max().item<double>();
  }
}

FullyShardedDataParallelOptions by_class(const std::string& name) {
  return {
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap = std::vector<std::string>{name}};
}

std::vector<Variant> variants() {
  FullyShardedDataParallelOptions sizes{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 20};
  FullyShardedDataParallelOptions checkpointed = sizes;
  checkpointed.activation_checkpointing = true;
  return {
      {"shard", {.fully_sharded = FullyShardedDataParallelOptions()}},
      {"root_only",
       {.fully_sharded =
            FullyShardedDataParallelOptions{
                .auto_wrap_policy = AutoWrapPolicy::no_wrap}}},
      {"by_size", {.fully_sharded = sizes}},
      {"grad_op",
       {.fully_sharded =
            FullyShardedDataParallelOptions{
                .fsdp_version = 2, .reshard_after_forward = false}}},
      {"no_prefetch",
       {.fully_sharded =
            FullyShardedDataParallelOptions{
                .backward_prefetch = BackwardPrefetch::none}}},
      {"late_prefetch",
       {.fully_sharded =
            FullyShardedDataParallelOptions{
                .backward_prefetch = BackwardPrefetch::backward_post}}},
      {"offloaded",
       {.fully_sharded = FullyShardedDataParallelOptions{.cpu_offload = true}}},
      {"checkpointed", {.fully_sharded = checkpointed}},
      {"zero1 checkpointed",
       {.deepspeed = DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 1},
        .activation_checkpointing =
            ActivationCheckpointingOptions{
                .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
                .min_num_params = 20}}},
      {"zero1",
       {.deepspeed =
            DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 1}}},
      {"zero2",
       {.deepspeed =
            DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 2}}},
      {"zero3",
       {.deepspeed =
            DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 3}}},
  };
}

class ShardParity : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ShardParity, EndsWithTheWeightsOfOneProcess) {
  const auto [num_ranks, accumulation] = GetParam();
  for (const Kind& kind : kinds()) {
    const Weights expected = train_alone(kind, num_ranks, accumulation);
    for (const Variant& variant : variants()) {
      expect_near(
          train_sharded(kind, variant, num_ranks, accumulation),
          expected,
          2e-5,
          kind.name + " " + variant.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShardParity,
    ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(1, 3)));

TEST(HybridShard, EndsWithTheWeightsOfOneProcess) {
  const Variant variant{"hybrid", {.replicate = 2, .shard = 2}};
  for (const Kind& kind : kinds()) {
    expect_near(
        train_sharded(kind, variant, 4, 1),
        train_alone(kind, 4, 1),
        2e-5,
        kind.name);
  }
}

// Parameters are sharded over groups of two of the four ranks between forward
// and backward.
TEST(ReshardGroup, EndWithTheWeightsOfOneProcess) {
  FullyShardedDataParallelOptions options{
      .fsdp_version = 2, .reshard_after_forward = 2};
  for (const bool checkpoints : {false, true}) {
    if (checkpoints) {
      options.activation_checkpointing = true;
      options.auto_wrap_policy = AutoWrapPolicy::size_based_wrap;
      options.min_num_params = 20;
    }
    for (const Kind& kind : kinds()) {
      for (const int accumulation : {1, 3}) {
        expect_near(
            train_sharded(
                kind, {"", {.fully_sharded = options}}, 4, accumulation),
            train_alone(kind, 4, accumulation),
            2e-5,
            kind.name);
      }
    }
  }
}

bool is_batch_norm(const nn::Module& module) {
  return module.as<nn::BatchNorm2dImpl>() != nullptr;
}

// Lowers everything to bf16 except batch normalisation, and scalars, which are
// not sharded.
void lower(nn::Module& module) {
  for (const auto& each : module.modules()) {
    if (is_batch_norm(*each)) continue;
    for (Tensor& parameter : each->parameters(/*recurse=*/false)) {
      if (parameter.dim() > 0)
        parameter.set_data(parameter.detach().to(torch::kBFloat16));
    }
  }
}

// Trains in one process that adds the gradients of the ranks' batches in rank
// order; with bf16, it computes them with a copy of the fp32 weights.
Weights train_in_order(
    const Kind& kind,
    int num_ranks,
    int accumulation = 1,
    bool bf16 = false) {
  const auto task = first_model(kind);
  const auto masters = first_model(kind);
  if (bf16) lower(*task);
  torch::optim::AdamW optimizer(masters->parameters(), adamw());
  const auto per_step = static_cast<std::size_t>(num_ranks * accumulation);
  const auto batches = all_batches(*task, kSteps * per_step);
  for (std::size_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (std::size_t i = 0; i < per_step; ++i) {
      task->zero_grad();
      Tensor batch = batches[step * per_step + i];
      std::optional<AutocastScope> autocast;
      if (bf16) {
        autocast.emplace(torch::kCPU, torch::kBFloat16);
        if (batch.is_floating_point()) batch = batch.to(torch::kBFloat16);
      }
      Tensor loss = task->loss(batch);
      if (bf16) loss = loss.to(torch::kFloat);
      autocast.reset();
      (loss * (1.0 / accumulation)).backward();
      auto targets = masters->parameters();
      std::size_t at = 0;
      for (const Tensor& parameter : task->parameters()) {
        Tensor& sum = targets[at++].mutable_grad();
        if (!parameter.grad().defined()) continue;
        const Tensor gradient = parameter.grad().to(torch::kFloat, false, true);
        if (sum.defined()) {
          sum.add_(gradient);
        } else {
          sum = gradient;
        }
      }
    }
    for (const Tensor& parameter : masters->parameters()) {
      if (parameter.grad().defined()) parameter.grad().div_(num_ranks);
    }
    optimizer.step();
    const torch::NoGradGuard no_grad;
    auto targets = task->parameters();
    std::size_t at = 0;
    for (const Tensor& parameter : masters->parameters())
      targets[at++].copy_(parameter);
  }
  return weights_of(*masters);
}

class ShardExactness : public ::testing::TestWithParam<int> {
 protected:
  // Whether to try the next combination of model, dtype and variant: always
  // between threads, and with only one number of ranks over Gloo.
  bool is_next_tried() {
    const int combination = num_combinations_++;
    return testing::ranks_connect_as_threads() ||
        combination % 3 == GetParam() % 3;
  }

 private:
  int num_combinations_ = 0;
};

// The reference multiplies and steps with LibTorch's own operators.
TEST_P(ShardExactness, EqualsSumsInRankOrderBitForBit) {
  for (const Kind& kind : kinds()) {
    for (const bool bf16 : {false, true}) {
      const Weights expected = train_in_order(kind, GetParam(), 1, bf16);
      for (const Variant& variant : variants()) {
        if (!is_next_tried()) continue;
        const Weights found = train_sharded(
            kind,
            variant,
            GetParam(),
            1,
            /*clips=*/false,
            bf16 ? std::optional(Precision::bf16) : std::nullopt,
            /*is_fused=*/false);
        for (const auto& [name, tensor] : expected) {
          EXPECT_TRUE(torch::equal(found.at(name), tensor))
              << kind.name << (bf16 ? " bf16 " : " ") << variant.name << " "
              << name << " differs by "
              << (found.at(name) - tensor).abs().max().item<double>();
        }
      }
    }
  }
}

Tensor flat(const Weights& weights) {
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : weights) all.push_back(tensor.reshape(-1));
  return torch::cat(all);
}

// Micro-steps are summed in bf16 if gradients stay full (ZeRO-1), and in fp32
// if they are sharded: the change of the weights agrees within a tenth.
TEST_P(ShardExactness, LearnsTheSameInSeveralMicroStepsOfBf16) {
  for (const Kind& kind : kinds()) {
    const Tensor before = flat(weights_of(*first_model(kind)));
    const Tensor expected =
        flat(train_in_order(kind, GetParam(), 3, /*bf16=*/true)) - before;
    for (const Variant& variant : variants()) {
      if (!is_next_tried()) continue;
      const Weights weights = train_sharded(
          kind,
          variant,
          GetParam(),
          3,
          /*clips=*/false,
          Precision::bf16,
          /*is_fused=*/false);
      const Tensor found = flat(weights) - before;
      const double difference =
          ((found - expected).norm() / expected.norm()).item<double>();
      EXPECT_LT(difference, 0.1) << kind.name << " " << variant.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardExactness, ::testing::Values(2, 3, 4));

TEST(DeepSpeed, ClipsAndAccumulatesAsItsConfigurationSays) {
  DeepSpeedOptions options;
  options.hf_ds_config =
      R"({"zero_optimization": {"stage": 3}, "gradient_clipping": 0.5,
          "gradient_accumulation_steps": 3})";
  const Kind& mlp = kinds().front();
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.deepspeed = options}, .world = world});
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
  });
  expect_near(
      train_sharded(
          mlp, {"deepspeed", {.deepspeed = options}}, 2, 3, /*clips=*/false),
      train_alone(mlp, 2, 3),
      2e-5,
      "mlp");
  expect_error<ConfigError>(
      [&] { train_sharded(mlp, {"deepspeed", {.deepspeed = options}}, 2, 4); },
      "DeepSpeed configuration");
}

TEST(Shard, WrapsClassesByName) {
  const Kind& gpt =
      *std::find_if(kinds().begin(), kinds().end(), [](const Kind& kind) {
        return kind.name == "gpt";
      });
  expect_near(
      train_sharded(
          gpt, {"class", {.fully_sharded = by_class("Attention")}}, 2, 1),
      train_alone(gpt, 2, 1),
      2e-5,
      "gpt");
  expect_error<ConfigError>(
      [&] {
        train_sharded(
            gpt, {"class", {.fully_sharded = by_class("Attentoin")}}, 2, 1);
      },
      "Attentoin");
}

}  // namespace shard_test
}  // namespace accelerate
