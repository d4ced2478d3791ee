#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "train/session/session.h"

namespace accelerate::testing {

/// Sizes that float8 accepts, and a sequence length that divides into two
/// chunks per rank for 1 to 4 ranks.
inline constexpr std::int64_t kParityWidth = 16;
inline constexpr std::int64_t kParityLength = 24;

/// The net of the parity suite: layers for wrap policies, a normalisation, and
/// attention over sequences; experts if wanted. It is not written for any
/// technique.
struct ParityBlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).unflatten(-1, {3, 2, kParityWidth / 2});
    const auto heads = [&](std::int64_t i) {
      return parts.select(2, i).transpose(1, 2);
    };
    const auto attended =
        at::scaled_dot_product_attention(heads(0), heads(1), heads(2));
    return x + torch::tanh(linear(attended.transpose(1, 2).flatten(2)));
  }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kParityWidth})));
  torch::nn::Linear qkv =
      register_module("qkv", torch::nn::Linear(kParityWidth, 3 * kParityWidth));
  torch::nn::Linear linear =
      register_module("linear", torch::nn::Linear(kParityWidth, kParityWidth));
};
TORCH_MODULE(ParityBlock);

struct ParityNetImpl : torch::nn::Module {
  explicit ParityNetImpl(bool has_experts = false) {
    for (int i = 0; i < 2; ++i) blocks->push_back(ParityBlock());
    register_module("blocks", blocks);
    if (!has_experts) return;
    // Each token goes to all experts, so that near ties in 16 bits decide
    // nothing.
    experts = register_module(
        "experts",
        ExpertLayer(ExpertLayerOptions{
            .hidden_size = kParityWidth,
            .num_experts = 4,
            .router = {.top_k = 4},
            .mlp = ExpertMlpOptions{.intermediate_size = 16, .bias = true}}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = x;
    for (const auto& block : *blocks) h = block->as<ParityBlock>()->forward(h);
    if (experts) h = h + experts(h);
    return head(h);
  }
  torch::nn::ModuleList blocks;
  ExpertLayer experts = nullptr;
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(kParityWidth, kParityWidth));
};
TORCH_MODULE(ParityNet);

/// Settings of the parity loop.
struct ParityRun {
  int num_ranks = 1;
  int gradient_accumulation_steps = 1;
  bool has_experts = false;
  /// Calls loss.backward() in place of Accelerator::backward().
  bool is_plain = false;
  /// Steps the optimizer itself, not its handle.
  bool steps_itself = false;
  /// Clips by an option of the step, not by clip_grad_norm_().
  bool clips_in_step = false;
  /// Leaves out warnings, such as those of plain backwards in windows.
  bool is_quiet = false;
  /// The training loop sets the world and the accumulation.
  AcceleratorOptions options = {};
  /// The dtype of the parameters before prepare().
  torch::ScalarType parameter_dtype = torch::kFloat;
};

/// Number of sequences per step over all ranks and micro-steps; divisible by 1
/// to 4 ranks and by windows of 1 to 3 micro-steps.
inline constexpr std::int64_t kParityBatch = 36;
inline constexpr int kParitySteps = 4;

/// The final weights of a run, and the strategies that trained it.
struct ParityResult {
  /// Full and in fp32, as get_state_dict() gives them on rank 0.
  Weights weights;
  std::vector<std::string> strategies;
};

/// Global batches that do not depend on the number of ranks.
struct ParityData {
  torch::Tensor inputs, labels;
};

/// Trains `make()`, whose parameters count on rank 0 only. `scores` of a model
/// and inputs are logits for each label.
template <class Make, class Scores>
ParityResult train_parity(
    const ParityRun& run,
    const ParityData& data,
    const Make& make,
    const Scores& scores) {
  ParityResult end;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = run.options;
    options.world = world;
    if (run.is_quiet)
      options.world.logger = Logger([](const LogRecord&) {}, LogLevel::error);
    options.gradient_accumulation_steps = run.gradient_accumulation_steps;
    if (std::getenv("ACCELERATE_TEST_UNFUSED") != nullptr)
      options.fused_linear = options.fused_optimizers = false;
    Accelerator accelerator(options);
    auto net = make();
    if (!accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.fill_(0.5);
    }
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        sgd,
        DataLoader(
            TensorDataset(data.inputs, data.labels),
            {.batch_size = kParityBatch / run.gradient_accumulation_steps,
             .split_batches = true}));
    for (auto& [x, y] : loader) {
      const auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      const auto sequences =
          x.is_floating_point() ? x.to(run.parameter_dtype) : x;
      std::optional<ContextParallelScope> scope;
      if (accelerator.mesh().degree(Axis::context) > 1)
        scope.emplace(
            accelerator.maybe_context_parallel({sequences, y}, {1, 1}));
      // Ranks that share a sequence have the same number of its positions.
      const auto loss = torch::nn::functional::cross_entropy(
          scores(model, sequences).to(torch::kFloat).flatten(0, 1),
          y.flatten());
      if (run.is_plain) {
        (loss / run.gradient_accumulation_steps).backward();
      } else {
        accelerator.backward(loss);
      }
      scope.reset();
      if (accelerator.sync_gradients() && !run.clips_in_step)
        accelerator.clip_grad_norm_(model, 0.5);
      if (run.steps_itself) {
        if (accelerator.sync_gradients()) sgd.step();
      } else if (run.clips_in_step) {
        optimizer.step({.max_norm = 0.5});
      } else {
        optimizer.step();
      }
    }
    Weights weights;
    for (const auto& [name, tensor] : accelerator.get_state_dict(model))
      weights[name] =
          tensor.detach().to(at::kCPU, torch::kFloat, false, /*copy=*/true);
    if (!accelerator.is_main_process()) return;
    end.weights = std::move(weights);
    for (const auto name : model.prepared()->strategies.names())
      end.strategies.emplace_back(name);
  });
  return end;
}

/// Trains ParityNet. With ACCELERATE_TEST_UNFUSED in the environment, linear
/// layers and optimizers are LibTorch's.
inline ParityResult train_parity_net(const ParityRun& run) {
  torch::manual_seed(3);
  const ParityData data{
      torch::randn({kParitySteps * kParityBatch, kParityLength, kParityWidth}),
      torch::randint(
          kParityWidth, {kParitySteps * kParityBatch, kParityLength})};
  const ParityNet first(run.has_experts);
  const auto make = [&] {
    ParityNet net(run.has_experts);
    const torch::NoGradGuard no_grad;
    const auto from = first->named_parameters();
    for (auto& item : net->named_parameters())
      item.value().copy_(from[item.key()]);
    net->to(run.parameter_dtype);
    return net;
  };
  return train_parity(run, data, make, [](const auto& model, const auto& x) {
    return model(x);
  });
}

}  // namespace accelerate::testing
