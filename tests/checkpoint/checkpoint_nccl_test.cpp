// Checkpoints between ranks on devices, which NCCL connects, and ranks on hosts.
#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accelerate/accelerate.h>

#include "support/nccl_ranks.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace checkpoint_nccl_test {

using testing::TemporaryDirectory;
using Weights = std::map<std::string, at::Tensor>;

/// Which states a training begins with and leaves, if any, and its steps.
struct Job {
  std::string from = {};
  int steps = 0;
  std::string to = {};
  int later_steps = 0;
};
/// Full weights, as rank 0 has them.
struct Outcome {
  Weights loaded, saved, last;
};

// Divides a model over the ranks, of which all see the same samples.
Outcome train(const WorldOptions& world, const Job& job) {
  const Accelerator accelerator(
      {.parallel = {.fully_sharded = FullyShardedDataParallelOptions()},
       .journal = false,
       .world = world});
  torch::nn::Sequential net(
      torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 4));
  torch::optim::AdamW adamw(
      net->parameters(), torch::optim::AdamWOptions(0.05));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const at::Tensor inputs =
      torch::arange(30).view({5, 6}).mul(0.1).sin().to(accelerator.device());
  const auto weights = [&, model = model] {
    Weights full;
    for (const auto& [name, tensor] : accelerator.get_state_dict(model))
      full[name] = tensor.detach().cpu().clone();
    return full;
  };
  const auto take = [&, model = model, optimizer = optimizer](int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(inputs).square().mean());
      optimizer.step();
    }
  };
  Outcome outcome;
  if (!job.from.empty()) accelerator.load_state(job.from);
  outcome.loaded = weights();
  take(job.steps);
  if (!job.to.empty()) accelerator.save_state(job.to);
  outcome.saved = weights();
  take(job.later_steps);
  outcome.last = weights();
  return outcome;
}

using Start = void (*)(int num_ranks, const testing::RankFunction& rank);

Outcome train_on(Start start, int num_ranks, const Job& job) {
  Outcome outcome;
  start(num_ranks, [&](const WorldOptions& world) {
    Outcome own = train(world, job);
    if (world.rank == 0) outcome = std::move(own);
  });
  return outcome;
}

void expect_close(const Weights& found, const Weights& expected, double most) {
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_FALSE(expected.empty());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::allclose(found.at(name), tensor, most, most)) << name;
}

TEST(CheckpointsOverNccl, GoToRanksOnHostsAndBack) {
  const TemporaryDirectory directory;
  const std::string of_devices = directory / "devices";
  const std::string of_hosts = directory / "hosts";
  const Outcome whole = train_on(
      &testing::run_on_nccl_ranks,
      2,
      {.steps = 2, .to = of_devices, .later_steps = 2});
  const Outcome on_hosts = train_on(
      &testing::run_on_ranks,
      3,
      {.from = of_devices, .steps = 1, .to = of_hosts});
  expect_close(on_hosts.loaded, whole.saved, 0);
  const Outcome back =
      train_on(&testing::run_on_nccl_ranks, 2, {.from = of_hosts, .steps = 1});
  expect_close(back.loaded, on_hosts.saved, 0);
  expect_close(back.last, whole.last, 1e-5);
}

// Weights that come from gradients which never arrived would replace good ones.
void expect_refusals(const ParallelOptions& parallel) {
  const TemporaryDirectory directory;
  const std::string good = directory / "good";
  std::atomic<int> num_refused = 0;
  testing::run_on_nccl_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = parallel, .journal = false, .world = world});
    torch::nn::Linear net(3, 2);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor inputs = torch::ones({4, 3}).to(accelerator.device());
    const auto take_step = [&, model = model, optimizer = optimizer] {
      optimizer.zero_grad();
      accelerator.backward(model(inputs).square().mean());
      optimizer.step();
    };
    take_step();
    accelerator.save_state(good);
    // Hosts meet.
    accelerator.wait_for_everyone();
    std::optional<testing::FakeNcclFaultScope> faults;
    if (world.rank == 0)
      faults.emplace(testing::FakeNcclFaults{.fails_all = true});
    accelerator.wait_for_everyone();
    // What ranks send each other in this step never arrives, which the host may
    // notice within it or later.
    try {
      take_step();
    } catch (const DistributedError&) {
    }
    sgd.param_groups()[0].params()[0].cpu();
    accelerator.wait_for_everyone();
    faults.reset();
    accelerator.wait_for_everyone();
    const auto expect_refused = [&](const auto& save) {
      try {
        save();
        ADD_FAILURE() << "saved";
      } catch (const Error& error) {
        EXPECT_THAT(
            error.what(),
            ::testing::HasSubstr("an operation between devices has failed"));
        ++num_refused;
      }
    };
    expect_refused([&] { accelerator.save_state(good); });
    expect_refused([&] { accelerator.save_state(directory / "other"); });
    expect_refused([&] {
      accelerator.save_state(directory / "copies", {.asynchronous = true})
          .wait();
    });
    expect_refused([&, model = model] { accelerator.save_model(model, good); });
  });
  EXPECT_EQ(num_refused, 8);
  EXPECT_FALSE(std::filesystem::exists(directory / "other"));
  EXPECT_FALSE(std::filesystem::exists(directory / "copies"));
  testing::run_on_nccl_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = parallel, .journal = false, .world = world});
    torch::nn::Linear net(3, 2);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.load_state(good);
  });
}

TEST(CheckpointsOverNccl, AreRefusedOnceAnOperationHasFailed) {
  expect_refusals({});
  expect_refusals({.fully_sharded = FullyShardedDataParallelOptions()});
}

}  // namespace checkpoint_nccl_test
}  // namespace accelerate
