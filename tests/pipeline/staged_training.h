#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerator.h>
#include <accelerate/pipeline.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

/// Training of a small model, in stages and in one process.
namespace accelerate::staged_training {

namespace F = torch::nn::functional;
using at::Tensor;
using testing::Weights;

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x + torch::tanh(linear(norm(x))); }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 6));
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = first(x);
    for (const auto& block : *blocks) h = block->as<Block>()->forward(h);
    return head(torch::relu(h));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 6));
  torch::nn::ModuleList blocks;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(6, 3));
};
TORCH_MODULE(Net);

inline PipelineLayers layers_of(const Net& net) {
  PipelineLayers layers;
  layers.add("first", net->first)
      .add_each<BlockImpl>("blocks", *net->blocks)
      .add("relu", [](Tensor x) { return torch::relu(x); })
      .add("head", net->head);
  return layers;
}

inline void copy_weights(const Net& from, const Net& to) {
  const torch::NoGradGuard no_grad;
  const auto weights = from->named_parameters();
  for (auto& item : to->named_parameters())
    item.value().copy_(weights[item.key()]);
}

inline Tensor loss_of(const Tensor& output, const Tensor& labels) {
  return F::cross_entropy(output, labels);
}

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 12;

struct Data {
  Tensor inputs;
  Tensor labels;
};

inline Data data() {
  torch::manual_seed(5);
  return {
      torch::randn({kSteps * kRows, 4}),
      torch::randint(3, {kSteps * kRows}, torch::kLong)};
}

inline Net make_net() {
  torch::manual_seed(3);
  return {};
}

/// Weights and losses of a training run.
struct Trained {
  Weights weights;
  std::vector<double> losses;
};

struct Setting {
  int num_ranks = 2;
  std::string schedule = "1F1B";
  int num_chunks = 1;
  int num_micro_batches = 2;
  bool recomputes = false;
  Precision precision = Precision::no;
};

inline torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

// An initial scale that overflows, so that steps are skipped.
inline GradScalerOptions scaler_options() {
  return {.init_scale = 65536.0 * 16, .growth_interval = 2};
}

/// Trains in one process, micro-batch by micro-batch; with `backwards`,
/// backward passes run from the last micro-batch to the first, as in LoopedBFS.
inline Trained train_alone(
    int num_micro_batches,
    Precision precision = Precision::no,
    bool backwards = false) {
  const Data all = data();
  Net net = make_net();
  Trained trained;
  testing::run_on_ranks(1, [&](const WorldOptions& world) {
    AcceleratorOptions options{.mixed_precision = precision, .world = world};
    options.grad_scaler = scaler_options();
    const Accelerator accelerator(options);
    torch::optim::SGD sgd(net->parameters(), sgd_options());
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Device device = accelerator.device();
      const auto x = all.inputs.narrow(0, step * kRows, kRows).to(device);
      const auto y = all.labels.narrow(0, step * kRows, kRows).to(device);
      const auto xs = x.tensor_split(num_micro_batches);
      const auto ys = y.tensor_split(num_micro_batches);
      Tensor total;
      std::vector<Tensor> losses;
      for (std::size_t i = 0; i < xs.size(); ++i) {
        const double weight =
            static_cast<double>(xs[i].size(0)) / static_cast<double>(kRows);
        const Tensor loss = loss_of(model(xs[i]), ys[i]);
        losses.push_back(weight == 1 ? loss : loss * weight);
        if (!backwards) accelerator.backward(losses.back());
        const Tensor share = loss.detach() * weight;
        total = total.defined() ? total + share : share;
      }
      for (std::size_t i = losses.size(); backwards && i-- > 0;)
        accelerator.backward(losses[i]);
      trained.losses.push_back(total.item<double>());
      optimizer.step();
    }
  });
  for (const auto& item : net->named_parameters())
    trained.weights[item.key()] = item.value().detach().cpu().clone();
  return trained;
}

inline Trained train_in_stages(const Setting& setting) {
  const Data all = data();
  Net first = make_net();
  Trained trained;
  std::mutex mutex;
  testing::run_on_ranks(setting.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options;
    options.mixed_precision = setting.precision;
    options.parallel.pipeline = setting.num_ranks;
    options.grad_scaler = scaler_options();
    options.world = world;
    if (setting.recomputes)
      options.parallel.activation_checkpointing =
          ActivationCheckpointingOptions{};
    const Accelerator accelerator(options);
    const Net net;
    copy_weights(first, net);
    const Pipeline pipeline(
        accelerator,
        layers_of(net),
        {.schedule = parse_pipeline_schedule(setting.schedule),
         .num_chunks = setting.num_chunks,
         .num_micro_batches = setting.num_micro_batches});
    torch::optim::SGD sgd(pipeline.parameters(), sgd_options());
    auto optimizer = accelerator.prepare(sgd);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const PipelineResult result = pipeline.step(
          all.inputs.narrow(0, step * kRows, kRows).to(accelerator.device()),
          all.labels.narrow(0, step * kRows, kRows).to(accelerator.device()),
          &loss_of);
      EXPECT_EQ(result.losses.size(), setting.num_micro_batches);
      EXPECT_EQ(result.loss.scalar_type(), torch::kFloat);
      losses.push_back(result.loss.item<double>());
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    if (trained.losses.empty()) trained.losses = losses;
    EXPECT_EQ(trained.losses, losses);
    for (const auto& item : pipeline.model().named_parameters())
      trained.weights[item.key()] = item.value().detach().cpu().clone();
  });
  return trained;
}

inline void expect_same(const Trained& found, const Trained& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  // Ranks that are processes check the weights of their own stages.
  if (!testing::ranks_are_processes()) {
    ASSERT_EQ(found.weights.size(), expected.weights.size());
  }
  ASSERT_FALSE(found.weights.empty());
  for (const auto& [name, weight] : found.weights) {
    ASSERT_TRUE(expected.weights.contains(name)) << name;
    EXPECT_TRUE(weight.equal(expected.weights.at(name))) << name;
  }
}

}  // namespace accelerate::staged_training
