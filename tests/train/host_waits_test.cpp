// How often the host waits for its device in a training step.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "comm/group/group_impl.h"
#include "parallel/context/block_exchange.h"
#include "pipeline/staged_training.h"
#include "support/expert_net.h"
#include "support/nccl_ranks.h"
#include "support/parity_task.h"
#include "support/pretend_device.h"

namespace accelerate {
namespace host_waits_test {

using testing::run_in_nccl_worlds;
using testing::run_on_nccl_ranks;

using Step = std::function<void()>;

// The waits of all ranks in the third step, when shapes and groups are known.
std::int64_t count_waits(
    int num_ranks,
    const AcceleratorOptions& given,
    const std::function<Step(const Accelerator&)>& prepare) {
  std::atomic<std::int64_t> waits = 0;
  run_on_nccl_ranks(num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = given;
    options.world = world;
    const Accelerator accelerator(options);
    const Step step = prepare(accelerator);
    step();
    step();
    const std::int64_t before = testing::pretend_host_waits();
    step();
    waits += testing::pretend_host_waits() - before;
  });
  return waits;
}

// Trains a net on samples of random numbers.
template <class Net>
Step train(
    const Accelerator& accelerator,
    const Net& net,
    std::vector<std::int64_t> sizes) {
  const auto sgd = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, *sgd);
  const at::Tensor x = torch::rand(sizes).to(accelerator.device());
  return [&accelerator, net, sgd, model = model, optimizer = optimizer, x] {
    optimizer.zero_grad();
    std::optional<ContextParallelScope> scope;
    at::Tensor own = x;
    if (accelerator.mesh().degree(Axis::context) > 1) {
      own = x.clone();
      scope.emplace(accelerator.maybe_context_parallel({own}, {1}));
    }
    const at::Tensor output = model(own);
    at::Tensor loss = scope
        ? scope->mean(output.square().sum(), torch::tensor(output.numel()))
        : output.square().mean();
    if constexpr (std::is_same_v<Net, testing::ExpertNet>)
      loss = loss + auxiliary_loss(*net);
    accelerator.backward(loss);
    scope.reset();
    optimizer.step();
  };
}

Step train_attention(const Accelerator& accelerator) {
  return train(
      accelerator,
      testing::ParityNet(),
      {4, testing::kParityLength, testing::kParityWidth});
}

TEST(HostWaits, AreNotNeededByReplicas) {
  EXPECT_EQ(count_waits(2, {}, &train_attention), 0);
}

TEST(HostWaits, AreNotNeededByContextParallelism) {
  AcceleratorOptions options;
  options.parallel.context = 2;
  EXPECT_EQ(count_waits(2, options, &train_attention), 0);
}

struct DivisibleImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return norm(x + down(torch::relu(up(norm(x)))));
  }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(8, 16));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(16, 8));
};
TORCH_MODULE(Divisible);

Step train_divisible(const Accelerator& accelerator) {
  return train(accelerator, Divisible(), {3, 4, 8});
}

TEST(HostWaits, AreNotNeededByTensorParallelism) {
  AcceleratorOptions options;
  options.parallel.tensor = 2;
  options.parallel.parallelize_plan =
      ParallelizePlan{{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}};
  EXPECT_EQ(count_waits(2, options, &train_divisible), 0);
}

TEST(HostWaits, AreNotNeededBySlicesOfSequences) {
  AcceleratorOptions options;
  options.parallel.tensor = 2;
  options.parallel.parallelize_plan = ParallelizePlan{
      {"up", ColwiseParallel{.input_layouts = Shard{1}}},
      {"down", RowwiseParallel{.output_layouts = Shard{1}}},
      {"norm", SequenceParallel{}}};
  EXPECT_EQ(count_waits(2, options, &train_divisible), 0);
}

TEST(HostWaits, AreNotNeededByPipelines) {
  for (const char* const schedule :
       {"GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
    AcceleratorOptions options;
    options.parallel.pipeline = 3;
    const int num_chunks =
        parse_pipeline_schedule(schedule) == PipelineScheduleKind::gpipe ||
            parse_pipeline_schedule(schedule) ==
                PipelineScheduleKind::one_f_one_b
        ? 1
        : 2;
    const auto prepare = [&](const Accelerator& accelerator) -> Step {
      const auto pipeline = std::make_shared<Pipeline>(
          accelerator,
          staged_training::layers_of(staged_training::Net()),
          PipelineOptions{
              .schedule = parse_pipeline_schedule(schedule),
              .num_chunks = num_chunks,
              .num_micro_batches = 6});
      const auto sgd = std::make_shared<torch::optim::SGD>(
          pipeline->parameters(), staged_training::sgd_options());
      const auto optimizer = accelerator.prepare(*sgd);
      const at::Tensor x = torch::rand({12, 4}).to(accelerator.device());
      const at::Tensor y =
          torch::randint(3, {12}, at::kLong).to(accelerator.device());
      return [pipeline, sgd, optimizer, x, y] {
        optimizer.zero_grad();
        const PipelineResult result =
            pipeline->step(x, y, &staged_training::loss_of);
        EXPECT_TRUE(result.loss.defined());
        optimizer.step();
        pipeline->evaluate(x, y, &staged_training::loss_of);
      };
    };
    EXPECT_EQ(count_waits(3, options, prepare), 0) << schedule;
  }
}

// Two layers of experts on each of two ranks.
std::int64_t waits_of_experts(std::optional<double> capacity_factor) {
  AcceleratorOptions options;
  options.parallel.expert = 2;
  testing::ExpertNetOptions net;
  net.router.capacity_factor = capacity_factor;
  return count_waits(2, options, [&](const Accelerator& accelerator) {
    return train(accelerator, testing::ExpertNet(net), {3, 4, 6});
  });
}

TEST(HostWaits, AreOneForEachLayerOfExpertsWithoutACapacity) {
  EXPECT_EQ(waits_of_experts(std::nullopt), 4);
}

TEST(HostWaits, AreNotNeededByExpertsWithACapacity) {
  EXPECT_EQ(waits_of_experts(1.25), 0);
}

// Rows that fill up a capacity count for nothing.
TEST(HostWaits, AreNotSavedAtTheCostOfValues) {
  for (const bool by_modules : {false, true}) {
    for (const double factor : {0.5, 1.25}) {
      for (const TokenDrop drop :
           {TokenDrop::lowest_weight, TokenDrop::last_position}) {
        testing::ExpertNetOptions options{.by_modules = by_modules};
        options.router.capacity_factor = factor;
        options.router.drop = drop;
        testing::ExpertNet host(options), device(options);
        auto generator = at::detail::createCPUGenerator(3);
        const at::Tensor x = torch::rand({13, 6}, generator);
        const at::Tensor wanted_output = host->forward(x);
        (wanted_output.square().sum() + auxiliary_loss(*host)).backward();
        run_on_nccl_ranks(1, [&](const WorldOptions& world) {
          const Accelerator accelerator({.world = world});
          const auto model = accelerator.prepare(device);
          const at::Tensor output = model(x.to(accelerator.device()));
          const at::Tensor loss = output.square().sum();
          accelerator.backward(loss + auxiliary_loss(*device));
          EXPECT_TRUE(torch::allclose(output.cpu(), wanted_output, 1e-5, 1e-6));
        });
        const auto expected = host->named_parameters();
        for (const auto& item : device->named_parameters()) {
          EXPECT_TRUE(torch::allclose(
              item.value().grad().cpu(),
              expected[item.key()].grad(),
              1e-4,
              1e-5))
              << item.key();
        }
        for (std::size_t i = 0; i < 2; ++i) {
          const auto load = [&](testing::ExpertNet net) {
            return net->blocks[i]
                ->as<testing::ExpertBlock>()
                ->experts->take_load();
          };
          const ExpertLoad found = load(device), wanted = load(host);
          EXPECT_EQ(found.assigned, wanted.assigned);
          EXPECT_EQ(found.dropped, wanted.dropped);
          EXPECT_TRUE(found.dropped > 0 || factor > 1);
          EXPECT_EQ(load(device).assigned, std::vector<std::int64_t>(4));
        }
      }
    }
  }
}

// A block's transfer has begun when a rank computes with the one before it.
TEST(HostWaits, AreNotWhatBlocksOfRingsTravelIn) {
  run_in_nccl_worlds(3, [](const World& world) {
    const Group& group = world.group();
    const at::Tensor own =
        torch::full({1, 1, 4, 2}, world.rank()).to(world.device());
    detail::BlockExchange blocks(
        group, {own}, KeyValueRotation::alltoall, [](int, int) { return 4; });
    const std::int64_t before = testing::pretend_host_waits();
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(group.impl()->num_exchanges, static_cast<std::uint64_t>(step));
      const at::Tensor block = blocks.block_at(step).front();
      EXPECT_EQ(
          group.impl()->num_exchanges,
          static_cast<std::uint64_t>(std::min(step + 1, 2)));
      EXPECT_EQ(testing::pretend_host_waits(), before + step);
      EXPECT_EQ(block.sum().item<std::int64_t>(), 8 * blocks.owner_at(step));
    }
    blocks.finish();
  });
}

}  // namespace host_waits_test
}  // namespace accelerate
