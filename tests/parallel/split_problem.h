#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"

/// Trains a model under a plan on many grids, and compares it with one process.
/// A model has forward(), which takes one tensor, and inputs(step,
/// num_samples), whose dimension kSampleDim counts samples.
namespace accelerate::split_problem {

using testing::named;
using testing::run_on_ranks;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

/// Sets the same values in each process.
inline void fill(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (const Tensor& parameter : module.parameters()) {
    const Tensor values =
        torch::sin(torch::arange(parameter.numel()) * 0.9 + 37 * number++);
    parameter.copy_((values * 0.4).view(parameter.sizes()));
  }
}

inline Tensor waves(int step, std::vector<std::int64_t> shape) {
  const std::int64_t size = c10::multiply_integers(shape);
  return torch::sin(torch::arange(size, torch::kFloat).mul(0.37).add(step))
      .view(shape);
}

inline Tensor loss_of(const Tensor& output) {
  const Tensor weights =
      torch::cos(torch::arange(output.size(-1), output.options()));
  return (output * weights).sum(-1).pow(2).mean();
}

struct Case {
  ParallelOptions parallel = {};
  Precision precision = Precision::no;
  double tolerance = 2e-5;
  int steps = 8;

  [[nodiscard]] int num_ranks() const {
    return parallel.replicate.value_or(1) * parallel.shard.value_or(1) *
        parallel.tensor.value_or(1);
  }
  [[nodiscard]] std::string name() const {
    std::string name = std::to_string(num_ranks()) + " ranks, " +
        std::to_string(parallel.tensor.value_or(1)) + " along tensor";
    if (parallel.activation_checkpointing) name += ", recomputed";
    return name;
  }
};

struct Outcome {
  std::vector<double> losses, norms;
  Weights weights;
};

template <class Net>
Outcome train(const Case& each, const WorldOptions& world) {
  constexpr std::int64_t kSamples = 4;
  // Split layers add their bias after the product, which in bf16 rounds twice.
  const Accelerator accelerator(
      {.mixed_precision = each.precision,
       .fused_linear = false,
       .parallel = each.parallel,
       .world = world});
  const auto net = std::make_shared<Net>();
  torch::optim::SGD sgd(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  const Mesh& mesh = accelerator.mesh();
  const std::int64_t share = kSamples / mesh.batch_count();
  Outcome outcome;
  for (int step = 0; step < each.steps; ++step) {
    const Tensor mine =
        Net::inputs(step, kSamples)
            .to(accelerator.device())
            .narrow(Net::kSampleDim, mesh.batch_rank() * share, share);
    const Tensor loss = loss_of(model(mine).to(torch::kFloat));
    accelerator.backward(loss);
    outcome.norms.push_back(
        accelerator.clip_grad_norm_(model, 0.5).template item<double>());
    optimizer.step();
    optimizer.zero_grad();
    outcome.losses.push_back(accelerator.reduce(loss.detach(), ReduceOp::mean)
                                 .template item<double>());
  }
  outcome.weights =
      named(accelerator.get_state_dict(model, {.rank0_only = false}));
  return outcome;
}

template <class Net>
void expect_like_one_process(const Case& each) {
  SCOPED_TRACE(each.name());
  Case alone = each;
  alone.parallel = {};
  Outcome expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train<Net>(alone, world);
  });
  EXPECT_GT(expected.norms.front(), 1e-3);
  run_on_ranks(each.num_ranks(), [&](const WorldOptions& world) {
    const Outcome found = train<Net>(each, world);
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(
          found.losses[i],
          expected.losses[i],
          each.tolerance * (1 + expected.losses[i]));
      EXPECT_NEAR(
          found.norms[i],
          expected.norms[i],
          each.tolerance * (1 + expected.norms[i]));
    }
    ASSERT_EQ(found.weights.size(), expected.weights.size());
    for (const auto& [name, weight] : expected.weights) {
      EXPECT_TRUE(torch::allclose(
          found.weights.at(name), weight, each.tolerance, each.tolerance))
          << name << " differs by "
          << (found.weights.at(name) - weight)
                 .abs()
                 .max()
                 .template item<double>();
    }
  });
}

/// Expects parity on 2 and 3 ranks, with replicas, with shards, with
/// recomputation, and in bf16.
template <class Net>
void expect_parity(const ParallelizePlan& plan) {
  const auto on = [&](int replicate, int shard, int tensor) {
    return Case{
        .parallel = {
            .replicate = replicate,
            .shard = shard,
            .tensor = tensor,
            .parallelize_plan = plan}};
  };
  for (const int tensor : {2, 3})
    expect_like_one_process<Net>(on(1, 1, tensor));
  expect_like_one_process<Net>(on(2, 1, 2));
  expect_like_one_process<Net>(on(1, 2, 2));
  Case recomputed = on(1, 1, 2);
  recomputed.parallel.activation_checkpointing = ActivationCheckpointingOptions{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 20};
  expect_like_one_process<Net>(recomputed);
  Case in_bf16 = on(1, 1, 3);
  in_bf16.precision = Precision::bf16;
  in_bf16.tolerance = 3e-2;
  expect_like_one_process<Net>(in_bf16);
}

/// Expects a ConfigError when the model is prepared or called.
template <class Net>
void expect_refused(
    const ParallelizePlan& plan,
    const std::string& why,
    int num_ranks = 2) {
  testing::expect_error<ConfigError>(
      [&] {
        run_on_ranks(num_ranks, [&](const WorldOptions& world) {
          const Accelerator accelerator(
              {.parallel = {.tensor = num_ranks, .parallelize_plan = plan},
               .world = world});
          const auto model = accelerator.prepare(std::make_shared<Net>());
          (void)model(Net::inputs(0, 4).to(accelerator.device()));
        });
      },
      why);
}

}  // namespace accelerate::split_problem
