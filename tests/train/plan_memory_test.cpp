// plan_memory().
#include <accelerate/accelerate.h>
#include <c10/core/CPUAllocator.h>

#include "support/expect_error.h"

namespace accelerate {
namespace plan_memory_test {

namespace nn = torch::nn;
using testing::expect_error;

nn::Sequential net() {
  nn::Sequential layers;
  for (int i = 0; i < 3; ++i) {
    layers->push_back(nn::Linear(256, 256));
    layers->push_back(nn::ReLU());
  }
  return layers;
}

TEST(PlanMemory, LeavesTheModuleAsItWas) {
  nn::BatchNorm1d norm(4);
  nn::Sequential module(nn::Linear(4, 4), norm, nn::Dropout(0.5));
  module->ptr<nn::LinearImpl>(0)->weight.mutable_grad() = torch::ones({4, 4});
  std::vector<torch::Tensor> values;
  std::vector<const void*> memory;
  for (const auto& each : module->parameters()) {
    values.push_back(each.detach().clone());
    memory.push_back(each.data_ptr());
  }
  const auto buffers = norm->running_mean.clone();
  torch::manual_seed(7);
  const auto expected = torch::rand({4});
  torch::manual_seed(7);
  auto* const allocator = c10::GetCPUAllocator();
  const Accelerator accelerator({.cpu = true, .journal = false});
  const MemoryPlan plan = plan_memory(
      accelerator.world(), module, torch::randn({6, 4}), {.num_ranks = 2});
  EXPECT_EQ(plan.rows().front().at.micro_batch, 6);
  EXPECT_EQ(c10::GetCPUAllocator(), allocator);
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
  std::size_t i = 0;
  for (const auto& each : module->parameters()) {
    EXPECT_EQ(each.data_ptr(), memory[i]);
    EXPECT_EQ(each.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(each, values[i++]));
  }
  EXPECT_TRUE(torch::equal(
      module->ptr<nn::LinearImpl>(0)->weight.grad(), torch::ones({4, 4})));
  EXPECT_FALSE(module->ptr<nn::LinearImpl>(0)->bias.grad().defined());
  EXPECT_TRUE(torch::equal(norm->running_mean, buffers));
  // The module can still train.
  module->forward(torch::randn({6, 4})).sum().backward();
}

TEST(PlanMemory, CountsParametersExactly) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  auto module = net();
  const MemoryPlan plan = plan_memory(
      accelerator.world(),
      module,
      torch::randn({64, 256}),
      {.num_ranks = 2, .num_local_ranks = 2});
  const std::uint64_t parameters = 3 * (256 * 256 + 256) * 4;
  const MemoryRow whole = plan.row(MemorySplit::replicated);
  EXPECT_EQ(whole.weights, parameters);
  EXPECT_EQ(whole.optimizer_state, 2 * parameters);
  EXPECT_EQ(whole.buckets, parameters);
  const MemoryRow full = plan.row(MemorySplit::full_shard);
  EXPECT_EQ(full.weights, parameters / 2);
  EXPECT_EQ(full.optimizer_state, parameters);
  // Inputs and comparisons of 64 samples: each layer keeps one result.
  MemoryCase at = whole.at;
  at.micro_batch = 10'000;
  const auto many = plan.row(at).activations;
  at.micro_batch = 20'000;
  EXPECT_GE(plan.row(at).activations - many, 10'000U * 4 * 256 * 4);
  EXPECT_LT(
      plan.row(at.split, FloatType::fp32, true).total(), plan.row(at).total());
}

TEST(PlanMemory, HonoursItsOptions) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  auto module = net();
  const auto plan = [&](const MemoryPlanOptions& options) {
    return plan_memory(
        accelerator.world(),
        module,
        [&](std::int64_t n) {
          return module->forward(torch::ones({n, 256})).sum();
        },
        options);
  };
  const std::uint64_t parameters = 3 * (256 * 256 + 256) * 4;
  const MemoryPlan sgd = plan(
      {.num_ranks = 4,
       .num_local_ranks = 2,
       .batch_size = 8,
       .optimizer = "sgd",
       .precisions = {FloatType::bf16},
       .unit_classes = {"Linear"},
       .gradient_as_bucket_view = true});
  const MemoryRow whole = sgd.row(MemorySplit::replicated, FloatType::bf16);
  EXPECT_EQ(whole.at.micro_batch, 8);
  EXPECT_EQ(whole.optimizer_state, 0U);
  EXPECT_EQ(whole.gradients, 0U);
  EXPECT_EQ(whole.buckets, parameters);
  EXPECT_EQ(
      sgd.row(MemorySplit::hybrid_shard, FloatType::bf16).at.num_shards, 2);
  expect_error<ConfigError>(
      [&] { static_cast<void>(sgd.row(MemorySplit::replicated)); },
      "with precision no");
  expect_error<ConfigError>(
      [&] { static_cast<void>(plan({.optimizer = "adamx"})); },
      "but is \"adamx\"");
  expect_error<ConfigError>(
      [&] { static_cast<void>(plan({.unit_classes = {"Nothing"}})); },
      "Nothing");
}

TEST(PlanMemory, CountsBuffersOfWhatADiskKeeps) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  nn::Sequential module;
  for (int i = 0; i < 3; ++i) module->push_back(nn::Linear(256, 256));
  const auto plan = [&](KeptOnDisk on_disk, int num_ranks) {
    return plan_memory(
        accelerator.world(),
        module,
        torch::ones({4, 256}),
        {.num_ranks = num_ranks,
         .precisions = {FloatType::fp32},
         .unit_classes = {"Linear"},
         .on_disk = on_disk});
  };
  const std::uint64_t parameters = 3 * (256 * 256 + 256) * 4;
  for (const int ranks : {1, 2}) {
    const MemorySplit split =
        ranks == 1 ? MemorySplit::replicated : MemorySplit::full_shard;
    const auto row = [&](KeptOnDisk on_disk) {
      return plan(on_disk, ranks).row(split);
    };
    const std::uint64_t shard = parameters / static_cast<std::uint64_t>(ranks);
    EXPECT_EQ(row(KeptOnDisk::nothing).on_disk, 0U);
    const MemoryRow optimizer = row(KeptOnDisk::optimizer);
    EXPECT_EQ(optimizer.on_disk, 3 * shard);
    EXPECT_EQ(optimizer.weights, shard);
    EXPECT_EQ(optimizer.gradients + optimizer.optimizer_state, 0U);
    // So little is all in the buffers.
    EXPECT_GE(optimizer.units, 3 * shard);
    const MemoryRow weights = row(KeptOnDisk::parameters);
    EXPECT_EQ(weights.on_disk, shard);
    EXPECT_EQ(weights.weights, 0U);
    EXPECT_GT(weights.optimizer_state, 0U);
    const MemoryRow all = row(KeptOnDisk::all);
    EXPECT_EQ(all.on_disk, 4 * shard);
    EXPECT_EQ(all.weights + all.gradients + all.optimizer_state, 0U);
  }
  // Replicas keep everything.
  const MemoryRow replica =
      plan(KeptOnDisk::all, 2).row(MemorySplit::replicated);
  EXPECT_EQ(replica.on_disk, 0U);
  EXPECT_EQ(replica.weights, parameters);
  EXPECT_NE(
      plan(KeptOnDisk::all, 2).table().find("on disk"), std::string::npos);
}

TEST(PlanMemory, CastsInputsAsAFullShardDoes) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  nn::Sequential module(
      nn::LayerNorm(nn::LayerNormOptions({64})), nn::Linear(64, 64));
  const MemoryPlanOptions options{
      .num_ranks = 2, .precisions = {FloatType::bf16}};
  const MemoryPlan cast =
      plan_memory(accelerator.world(), module, torch::ones({4, 64}), options);
  EXPECT_EQ(cast.notes().size(), 1U);
  // Normalization refuses fp32 inputs with bf16 weights.
  const MemoryPlan own = plan_memory(
      accelerator.world(),
      module,
      [&](std::int64_t n) {
        return module->forward(torch::ones({n, 64})).sum();
      },
      options);
  ASSERT_EQ(own.notes().size(), 2U);
  EXPECT_NE(own.notes()[0].find("parameters in fp32"), std::string::npos);
}

TEST(PlanMemory, CountsTheBatchAndTheOutputThatALoopHolds) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  nn::Linear module(1 << 16, 1 << 4);
  const auto activations = [&](const MemoryPlan& plan) {
    return plan.row(MemorySplit::replicated).activations;
  };
  const MemoryPlanOptions options{
      .num_ranks = 1,
      .batch_size = 64,
      .optimizer = "sgd",
      .precisions = {FloatType::fp32}};
  const torch::Tensor batch = torch::ones({4, 1 << 16});
  const std::uint64_t held = 64ULL * (1 << 16) * 4;
  EXPECT_GE(
      activations(plan_memory(accelerator.world(), module, batch, options)),
      held);
  // A loss whose batch is freed after the forward.
  const MemoryPlan freed = plan_memory(
      accelerator.world(),
      module,
      [&](std::int64_t n) {
        return (torch::ones({n, 1 << 16}).sum() * module->bias).sum();
      },
      options);
  EXPECT_LT(
      activations(freed),
      activations(plan_memory(accelerator.world(), module, batch, options)));
}

TEST(PlanMemory, CountsFreedBlocksThatAreKept) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  constexpr std::int64_t kWidth = 1024;
  nn::Sequential module(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
  const auto total = [&](bool keep) {
    return plan_memory(
               accelerator.world(),
               module,
               torch::ones({2, kWidth}),
               {.num_ranks = 2,
                .precisions = {FloatType::fp32},
                .keep_freed_blocks = keep})
        .row(MemorySplit::full_shard)
        .total();
  };
  EXPECT_GT(total(true), total(false));
}

// A step with scratch memory that stops growing at 512 samples.
TEST(PlanMemory, RunsManySamplesIfScratchIsLarge) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  nn::Linear module(4, 4);
  std::int64_t most = 0;
  const auto plan = [&](std::int64_t batch_size) {
    most = 0;
    MemoryCase at = MemoryCase{.micro_batch = 4096};
    return plan_memory(
               accelerator.world(),
               module,
               [&](std::int64_t n) {
                 most = std::max(most, n);
                 torch::empty({std::min<std::int64_t>(n, 512), 1024});
                 return module(torch::ones({n, 4})).sum();
               },
               {.batch_size = batch_size, .precisions = {FloatType::fp32}})
        .row(at)
        .total();
  };
  const std::uint64_t extrapolated = plan(4);
  EXPECT_EQ(most, 4);
  EXPECT_GT(extrapolated, 4096U * 4096U);
  EXPECT_LT(plan(4096), 512U * 4096U + (1U << 20));
  EXPECT_EQ(most, 4096);
}

TEST(PlanMemory, NamesStepsThatItCannotPlan) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  auto module = net();
  auto* const allocator = c10::GetCPUAllocator();
  const auto plan = [&](const auto& loss_of) {
    static_cast<void>(plan_memory(
        accelerator.world(),
        module,
        std::function<at::Tensor(std::int64_t)>(loss_of)));
  };
  expect_error<ConfigError>(
      [&] {
        plan([&](std::int64_t n) {
          return module->forward(torch::ones({n, 256}));
        });
      },
      "needs a loss with one element");
  expect_error<ConfigError>(
      [&] {
        plan([&](std::int64_t n) {
          auto y = module->forward(torch::ones({n, 256}));
          for (std::int64_t i = 0; i < n; ++i) y = y.exp();
          return y.sum();
        });
      },
      "calls different operators with 8 samples than with 16");
  expect_error<std::logic_error>(
      [&] {
        plan(
            [](std::int64_t) -> at::Tensor { throw std::logic_error("mine"); });
      },
      "mine");
  EXPECT_EQ(c10::GetCPUAllocator(), allocator);
  auto empty = init_empty_weights([] { return nn::Linear(2, 2); });
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(
            plan_memory(accelerator.world(), empty, torch::ones({2, 2})));
      },
      "\"weight\" is on meta");
}

}  // namespace plan_memory_test
}  // namespace accelerate
