#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

/// Models that are not written for any technique, and one loop that trains them
/// on any grid of replicas, shards, divided sequences and split layers.
namespace accelerate::axes_problem {

using testing::named;
using testing::run_on_ranks;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

inline constexpr std::int64_t kWords = 11, kHeads = 4, kHeadSize = 2, kTime = 8;
inline constexpr std::int64_t kWidth = kHeads * kHeadSize;

/// Computes each word's logits from the words and their positions.
struct AxesNet : nn::Module {
  virtual Tensor forward(const Tensor& words, const Tensor& positions) = 0;

 protected:
  /// Sets the same values in every process.
  void initialise() {
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (const Tensor& parameter : parameters()) {
      const Tensor values =
          torch::sin(torch::arange(parameter.numel()) * 0.9 + 37 * number++);
      parameter.copy_((values * 0.4).view(parameter.sizes()));
    }
  }
};

/// Layers that treat each position separately; two have an odd size.
struct Mlp final : AxesNet {
  Mlp() {
    register_module("tokens", tokens);
    register_module("norm", norm);
    register_module("layers", layers);
    initialise();
  }
  Tensor forward(const Tensor& words, const Tensor&) override {
    const Tensor x = tokens(words);
    return layers->forward(x + norm(x));
  }
  static ParallelizePlan plan() {
    return {
        {"tokens", RowwiseParallel{}},
        {"layers.0", ColwiseParallel{}},
        {"layers.2", RowwiseParallel{}},
        {"layers.3", ColwiseParallel{.output_layouts = Replicate{}}}};
  }
  nn::Embedding tokens{kWords, kWidth};
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Sequential layers{
      nn::Linear(kWidth, 2 * kWidth + 1),
      nn::GELU(),
      nn::Linear(2 * kWidth + 1, kWidth),
      nn::Linear(kWidth, kWords)};
};

/// LibTorch's encoder, in which all positions attend to all.
struct Encoder : AxesNet {
  Encoder() {
    register_module("tokens", tokens);
    register_module("places", places);
    register_module("encoder", encoder);
    register_module("head", head);
    initialise();
  }
  Tensor forward(const Tensor& words, const Tensor& positions) override {
    const Tensor x = tokens(words) + places(positions);
    return head(encoder(x.transpose(0, 1)).transpose(0, 1));
  }
  static ParallelizePlan plan() {
    return infer_parallelize_plan(Encoder(), 4).plan;
  }
  nn::Embedding tokens{kWords, kWidth}, places{kTime, kWidth};
  nn::TransformerEncoder encoder{
      nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(kWidth, kHeads)
              .dim_feedforward(2 * kWidth)
              .dropout(0)),
      2};
  nn::Linear head{kWidth, kWords};
};

/// The same encoder, split by a plan that divides its sequences.
struct EncoderOnSlices final : Encoder {
  static ParallelizePlan plan() {
    return infer_parallelize_plan(Encoder(), 4, /*sequence_parallel=*/true)
        .plan;
  }
};

/// A GPT with a tied embedding; its code derives the number of heads from the
/// size of its input.
struct Gpt final : AxesNet {
  Gpt() {
    register_module("tokens", tokens);
    register_module("places", places);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("mlp", mlp);
    initialise();
  }
  Tensor forward(const Tensor& words, const Tensor& positions) override {
    Tensor x = tokens(words) + places(positions);
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto heads = [](const Tensor& part) {
      return part.unflatten(-1, {-1, kHeadSize}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(parts[0]),
        heads(parts[1]),
        heads(parts[2]),
        {},
        0,
        /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).flatten(-2));
    x = x + mlp->forward(norm2(x));
    return torch::matmul(x, tokens->weight.t());
  }
  static ParallelizePlan plan() {
    return {
        {"tokens", RowwiseParallel{}},
        {"qkv",
         ColwiseParallel{
             .num_heads = kHeads, .projections = {kWidth, kWidth, kWidth}}},
        {"out", RowwiseParallel{.num_heads = kHeads}},
        {"mlp.0", ColwiseParallel{}},
        {"mlp.2", RowwiseParallel{}}};
  }
  nn::Embedding tokens{kWords, kWidth}, places{kTime, kWidth};
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})},
      norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth};
  nn::Sequential mlp{
      nn::Linear(kWidth, 2 * kWidth),
      nn::GELU(),
      nn::Linear(2 * kWidth, kWidth)};
};

struct Axes {
  int replicate = 1;
  int shard = 1;
  int context = 1;
  int tensor = 1;

  [[nodiscard]] int num_ranks() const {
    return replicate * shard * context * tensor;
  }
  [[nodiscard]] std::string name() const {
    return std::to_string(replicate) + "x" + std::to_string(shard) + "x" +
        std::to_string(context) + "x" + std::to_string(tensor);
  }
};

struct Numbers {
  int steps = 6;
  int window = 1;
  bool recomputes = false;
  Precision precision = Precision::no;
  double tolerance = 2e-5;
  std::int64_t samples = 4;
  std::function<void(AcceleratorOptions&)> adapt = nullptr;
};

inline AcceleratorOptions options_of(
    const Axes& axes,
    const Numbers& numbers,
    ParallelizePlan plan,
    const WorldOptions& world) {
  AcceleratorOptions options{
      .mixed_precision = numbers.precision,
      .gradient_accumulation_steps = numbers.window,
      .parallel =
          {.replicate = axes.replicate,
           .shard = axes.shard,
           .tensor = axes.tensor,
           .context = axes.context,
           .parallelize_plan = std::move(plan)},
      .world = world};
  if (numbers.recomputes) {
    options.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
        .min_num_params = 60};
  }
  if (numbers.adapt) numbers.adapt(options);
  return options;
}

struct Outcome {
  std::vector<double> losses, norms;
  Weights weights;
};

// Trains from micro-step `first` to micro-step `last`.
template <class Net>
void train(
    const Accelerator& accelerator,
    const Net& model,
    const Optimizer& optimizer,
    const Numbers& numbers,
    int first,
    int last,
    Outcome& outcome) {
  const Mesh& mesh = accelerator.mesh();
  const std::int64_t share = numbers.samples / mesh.batch_count();
  for (int step = first; step < last; ++step) {
    const auto micro_step = accelerator.accumulate(model);
    const Tensor batch =
        ((torch::arange(numbers.samples * (kTime + 1)) * 7 + step)
             .remainder(kWords))
            .view({numbers.samples, -1})
            .narrow(0, mesh.batch_rank() * share, share);
    const Tensor words = batch.narrow(1, 0, kTime).clone();
    const Tensor targets = batch.narrow(1, 1, kTime).clone();
    const Tensor positions = torch::arange(kTime);
    const ContextParallelScope sequence = accelerator.maybe_context_parallel(
        {words, targets, positions},
        {1, 1, 0},
        {},
        {.pad_values = {0, -100, 0}});
    const Tensor sum = nn::functional::cross_entropy(
        model(words, positions).flatten(0, 1).to(torch::kFloat),
        targets.flatten(),
        nn::functional::CrossEntropyFuncOptions().ignore_index(-100).reduction(
            torch::kSum));
    const Tensor loss = sequence.mean(sum, targets.ne(-100).sum());
    accelerator.backward(loss);
    if (accelerator.sync_gradients()) {
      outcome.norms.push_back(
          accelerator.clip_grad_norm_(model, 0.05).template item<double>());
    }
    optimizer.step();
    optimizer.zero_grad();
    outcome.losses.push_back(accelerator.reduce(loss.detach(), ReduceOp::mean)
                                 .template item<double>());
  }
}

template <class Module, class Body>
void run(const Axes& axes, const Numbers& numbers, Body&& body) {
  run_on_ranks(axes.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator(
        options_of(axes, numbers, Module::plan(), world));
    const auto net = std::make_shared<Module>();
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    body(accelerator, model, optimizer);
  });
}

template <class Module = Gpt>
Outcome outcome_on(const Axes& axes, const Numbers& numbers) {
  Outcome outcome;
  run<Module>(
      axes,
      numbers,
      [&](const auto& accelerator, auto& model, auto& optimizer) {
        Outcome own;
        train(
            accelerator,
            model,
            optimizer,
            numbers,
            0,
            numbers.steps * numbers.window,
            own);
        own.weights =
            named(accelerator.get_state_dict(model, {.rank0_only = false}));
        if (accelerator.is_main_process()) outcome = own;
      });
  return outcome;
}

template <class Module = Gpt>
void expect_like(
    const Outcome& expected,
    const Axes& axes,
    const Numbers& numbers = {}) {
  SCOPED_TRACE(axes.name());
  const Outcome found = outcome_on<Module>(axes, numbers);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 3 * numbers.tolerance);
  for (std::size_t i = 0; i < found.norms.size(); ++i) {
    EXPECT_NEAR(
        found.norms[i],
        expected.norms[i],
        numbers.tolerance * (1 + expected.norms[i]));
  }
  for (const auto& [name, weight] : expected.weights) {
    EXPECT_TRUE(torch::allclose(
        found.weights.at(name), weight, numbers.tolerance, numbers.tolerance))
        << name;
  }
}

}  // namespace accelerate::axes_problem
