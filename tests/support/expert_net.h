#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate::testing {

/// How to build the net of the experts' tests.
struct ExpertNetOptions {
  std::int64_t num_experts = 4;
  /// The experts are the program's own modules, not an MLP of the library.
  bool by_modules = false;
  bool shares = true;
  RouterOptions router = {
      .top_k = 2,
      .balance_loss_coefficient = 0.1,
      .z_loss_coefficient = 0.01};
};

inline constexpr std::int64_t kNetWidth = 8, kNetInputs = 6, kNetClasses = 5;

struct OwnExpertImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& tokens) {
    return down(torch::tanh(up(tokens)));
  }
  torch::nn::Linear up =
      register_module("up", torch::nn::Linear(kNetWidth, 2 * kNetWidth));
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(2 * kNetWidth, kNetWidth));
};
TORCH_MODULE(OwnExpert);

inline ExpertLayerOptions layer_options(const ExpertNetOptions& options) {
  ExpertLayerOptions layer{
      .hidden_size = kNetWidth,
      .num_experts = options.num_experts,
      .router = options.router};
  if (options.by_modules) {
    layer.make_expert = [](std::int64_t) {
      return torch::nn::AnyModule(OwnExpert());
    };
  } else {
    layer.mlp = ExpertMlpOptions{.intermediate_size = 6, .bias = true};
  }
  if (options.shares)
    layer.shared_mlp = ExpertMlpOptions{.intermediate_size = 4};
  return layer;
}

struct ExpertBlockImpl : torch::nn::Module {
  explicit ExpertBlockImpl(const ExpertNetOptions& options)
      : experts(layer_options(options)) {
    register_module("experts", experts);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + experts(norm(x)); }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kNetWidth})));
  ExpertLayer experts;
};
TORCH_MODULE(ExpertBlock);

/// Two blocks of experts between linear layers, with the same values on all
/// ranks.
struct ExpertNetImpl : torch::nn::Module {
  explicit ExpertNetImpl(const ExpertNetOptions& options = {}) {
    for (int i = 0; i < 2; ++i) blocks->push_back(ExpertBlock(options));
    register_module("blocks", blocks);
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (const torch::Tensor& parameter : parameters()) {
      const torch::Tensor values =
          torch::sin(torch::arange(parameter.numel()) * 0.9 + 37 * number++);
      parameter.copy_((values * 0.4).view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = embed(x);
    for (const auto& block : *blocks) h = block->as<ExpertBlock>()->forward(h);
    return head(h);
  }
  torch::nn::Linear embed =
      register_module("embed", torch::nn::Linear(kNetInputs, kNetWidth));
  torch::nn::ModuleList blocks;
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(kNetWidth, kNetClasses));
};
TORCH_MODULE(ExpertNet);

/// The degrees of a grid of ranks.
struct ExpertGrid {
  int replicate = 1;
  int shard = 1;
  int expert = 1;
  int context = 1;
  int tensor = 1;

  [[nodiscard]] int num_ranks() const {
    return replicate * shard * context * tensor;
  }
  [[nodiscard]] std::string name() const {
    return std::to_string(replicate) + "x" + std::to_string(shard) + "/" +
        std::to_string(expert) + "x" + std::to_string(context) + "x" +
        std::to_string(tensor);
  }
};

struct ExpertRun {
  ExpertGrid grid = {};
  ExpertNetOptions net = {};
  int steps = 4;
  int window = 1;
  bool recomputes = false;
  bool adam = false;
  Precision precision = Precision::no;
  torch::ScalarType parameter_dtype = torch::kFloat;
  /// The training loop sets the world and the degrees.
  AcceleratorOptions options = {};
};

struct ExpertOutcome {
  std::vector<double> losses, norms;
  Weights weights;
};

inline constexpr std::int64_t kNetSamples = 12, kNetPositions = 4;

/// Trains from micro-step `first` to `last`, on global batches that do not
/// depend on the grid.
template <class Net>
void train_expert_net(
    const Accelerator& accelerator,
    const Net& model,
    const Optimizer& optimizer,
    int first,
    int last,
    ExpertOutcome& outcome) {
  const Mesh& mesh = accelerator.mesh();
  const std::int64_t share = kNetSamples / mesh.batch_count();
  const auto dtype = model.parameters().front().scalar_type();
  for (int step = first; step < last; ++step) {
    const auto micro_step = accelerator.accumulate(model);
    const auto numbers =
        torch::arange(kNetSamples * kNetPositions * (kNetInputs + 1));
    const torch::Tensor batch =
        torch::sin(numbers * 1.7 + 11 * step)
            .view({kNetSamples, kNetPositions, kNetInputs + 1})
            .narrow(0, mesh.batch_rank() * share, share);
    const std::int64_t positions = kNetPositions / mesh.degree(Axis::context);
    const torch::Tensor mine =
        batch.narrow(1, mesh.coordinate(Axis::context) * positions, positions);
    const torch::Tensor inputs = mine.narrow(2, 0, kNetInputs).to(dtype);
    const torch::Tensor labels =
        ((mine.select(2, kNetInputs) + 1) * 2.49).to(torch::kLong);
    const torch::Tensor logits = model(inputs).flatten(0, 1);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
                                   logits.to(torch::kFloat), labels.flatten()) +
        auxiliary_loss(*model.module());
    accelerator.backward(loss);
    if (accelerator.sync_gradients()) {
      outcome.norms.push_back(
          accelerator.clip_grad_norm_(model, 0.5).template item<double>());
    }
    optimizer.step();
    optimizer.zero_grad();
    const torch::Tensor mean = loss.detach().clone();
    mesh.gradient_group().all_reduce(mean, ReduceOp::mean);
    outcome.losses.push_back(mean.item<double>());
  }
}

inline AcceleratorOptions accelerator_options(
    const ExpertRun& run,
    const WorldOptions& world) {
  AcceleratorOptions options = run.options;
  options.world = world;
  options.mixed_precision = run.precision;
  options.gradient_accumulation_steps = run.window;
  if (options.parallel.megatron_lm) return options;
  options.parallel.replicate = run.grid.replicate;
  options.parallel.shard = run.grid.shard;
  options.parallel.expert = run.grid.expert;
  options.parallel.context = run.grid.context;
  options.parallel.tensor = run.grid.tensor;
  if (!options.parallel.parallelize_plan)
    options.parallel.parallelize_plan = ParallelizePlan{};
  if (run.recomputes) {
    options.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
        .transformer_cls_names_to_wrap = {"ExpertBlockImpl"}};
  }
  return options;
}

/// Calls `body(accelerator, model, optimizer)` on each rank.
template <class Body>
void run_expert_net(const ExpertRun& run, Body&& body) {
  run_on_ranks(run.grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator(accelerator_options(run, world));
    ExpertNet net(run.net);
    net->to(run.parameter_dtype);
    std::unique_ptr<torch::optim::Optimizer> inner;
    if (run.adam) {
      inner = std::make_unique<torch::optim::AdamW>(
          net->parameters(), torch::optim::AdamWOptions(0.01));
    } else {
      inner = std::make_unique<torch::optim::SGD>(
          net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    }
    const auto [model, optimizer] = accelerator.prepare(net, *inner);
    body(accelerator, model, optimizer);
  });
}

inline ExpertOutcome outcome_of(const ExpertRun& run) {
  ExpertOutcome outcome;
  run_expert_net(
      run, [&](const auto& accelerator, auto& model, auto& optimizer) {
        ExpertOutcome own;
        train_expert_net(
            accelerator, model, optimizer, 0, run.steps * run.window, own);
        for (const auto& [name, tensor] :
             accelerator.get_state_dict(model, {.rank0_only = false}))
          own.weights[name] = tensor.detach().to(
              torch::kFloat, /*non_blocking=*/false, /*copy=*/true);
        if (accelerator.is_main_process()) outcome = std::move(own);
      });
  return outcome;
}

/// Expects the same losses, norms and weights as in `expected`.
inline void expect_like(
    const ExpertOutcome& expected,
    const ExpertOutcome& found,
    double tolerance) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 3 * tolerance) << i;
  ASSERT_EQ(found.norms.size(), expected.norms.size());
  for (std::size_t i = 0; i < found.norms.size(); ++i) {
    EXPECT_NEAR(
        found.norms[i], expected.norms[i], tolerance * (1 + expected.norms[i]))
        << i;
  }
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    ASSERT_TRUE(found.weights.contains(name)) << name;
    EXPECT_TRUE(
        torch::allclose(found.weights.at(name), weight, tolerance, tolerance))
        << name << " differs by "
        << (found.weights.at(name) - weight).abs().max().item<double>();
  }
}

}  // namespace accelerate::testing
