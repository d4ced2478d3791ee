#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate::testing {

/// The net of the parity suite: layers for wrap policies, a normalisation, and
/// a parameter that no forward uses.
struct ParityBlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return x + torch::tanh(linear(norm(x)));
  }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 6));
};
TORCH_MODULE(ParityBlock);

struct ParityNetImpl : torch::nn::Module {
  ParityNetImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(ParityBlock());
    register_module("blocks", blocks);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = x;
    for (const auto& block : *blocks) h = block->as<ParityBlock>()->forward(h);
    return head(h);
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(6, 5));
};
TORCH_MODULE(ParityNet);

/// Settings of the parity loop.
struct ParityRun {
  int num_ranks = 1;
  int gradient_accumulation_steps = 1;
  /// The loop sets the world and the accumulation itself.
  AcceleratorOptions options = {};
  /// The dtype of the parameters before prepare().
  torch::ScalarType parameter_dtype = torch::kFloat;
};

/// Number of samples of a step over all ranks and micro-steps; 1 to 4 ranks and
/// windows of 1 to 3 micro-steps divide it.
inline constexpr std::int64_t kParityBatch = 36;
inline constexpr int kParitySteps = 4;

/// Trains ParityNet on the same global batches for any number of ranks, and
/// returns its full weights in fp32, as get_state_dict() does on rank 0.
inline Weights train_parity_net(const ParityRun& run) {
  torch::manual_seed(3);
  const auto inputs = torch::randn({kParitySteps * kParityBatch, 6});
  const auto labels = torch::randint(5, {kParitySteps * kParityBatch});
  const ParityNet first;
  Weights end;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = run.options;
    options.world = world;
    options.gradient_accumulation_steps = run.gradient_accumulation_steps;
    Accelerator accelerator(options);
    ParityNet net;
    if (accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      const auto from = first->named_parameters();
      for (auto& item : net->named_parameters())
        item.value().copy_(from[item.key()]);
    }
    net->to(run.parameter_dtype);
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        sgd,
        DataLoader(
            TensorDataset(inputs, labels),
            {.batch_size = kParityBatch / run.gradient_accumulation_steps,
             .split_batches = true}));
    for (auto& [x, y] : loader) {
      const auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(
          model(x.to(run.parameter_dtype)).to(torch::kFloat), y));
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
    }
    Weights weights;
    for (const auto& [name, tensor] : accelerator.get_state_dict(model))
      weights[name] = tensor.detach().to(torch::kFloat, false, /*copy=*/true);
    if (accelerator.is_main_process()) end = std::move(weights);
  });
  return end;
}

}  // namespace accelerate::testing
