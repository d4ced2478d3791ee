#include <numeric>

#include <rapidcheck.h>

#include <accelerate/accelerate.h>
#include <c10/core/CPUAllocator.h>

#include "support/expect_error.h"
#include "train/plan/heap_model.h"
#include "train/plan/resident_memory.h"
#include "train/plan/step_simulation.h"

namespace accelerate {
namespace plan_memory_test {

namespace nn = torch::nn;
using detail::MemoryUse;
using detail::PlannedModel;
using detail::ResidentMemory;
using detail::StepSettings;
using detail::StepTrace;
using detail::TraceEvent;
using testing::expect_error;
using Kind = TraceEvent::Kind;

constexpr std::uint64_t kMiB = 1 << 20;

std::size_t place(MemoryUse use) { return static_cast<std::size_t>(use); }

TEST(ResidentMemoryTest, RemembersItsHighestMoment) {
  constexpr std::int64_t kBlock = kMiB;
  ResidentMemory memory;
  memory.take(MemoryUse::weights, 10 * kBlock);
  memory.take(MemoryUse::activations, 5 * kBlock);
  memory.move(MemoryUse::activations, MemoryUse::gradients, 2 * kBlock);
  memory.give(MemoryUse::activations, 3 * kBlock);
  memory.take(MemoryUse::workspace, kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], 3 * kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::gradients)], 2 * kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::workspace)], 0);
  memory.forget_peak();
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], 0);
  EXPECT_EQ(memory.peak()[place(MemoryUse::workspace)], kBlock);
}

std::int64_t sum_of(const ResidentMemory::Uses& uses) {
  return std::accumulate(uses.begin(), uses.end(), std::int64_t{0});
}

TEST(ResidentMemoryTest, KeepsWhatTheHeapOnceHad) {
  ResidentMemory memory;
  for (int i = 0; i < 4; ++i) memory.take(MemoryUse::activations, 1000);
  const std::int64_t most = sum_of(memory.now());
  EXPECT_GT(most, 4000);
  EXPECT_LT(most, 4000 + 4 * 128);
  for (int i = 0; i < 3; ++i) memory.give(MemoryUse::activations, 1000);
  EXPECT_EQ(memory.now()[place(MemoryUse::activations)], 1000);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], most - 1000);
  // Taken from what is free, until nothing is.
  memory.take(MemoryUse::gradients, 2000);
  EXPECT_EQ(sum_of(memory.now()), most);
  memory.take(MemoryUse::gradients, 2000);
  EXPECT_GT(sum_of(memory.now()), most);
}

// Blocks lie beside each other: what is free between those in use is lost for
// larger ones, and not returned.
TEST(HeapModelTest, HasHolesThatLargerBlocksDoNotFitInto) {
  detail::HeapModel heap;
  constexpr std::int64_t kSmall = 10'000;
  for (int i = 0; i < 20; ++i) {
    heap.take(kSmall);
    heap.take(kSmall + 1000 + i);
  }
  const std::int64_t full = heap.resident();
  for (int i = 0; i < 20; ++i) heap.give(kSmall + 1000 + i);
  // The end is free, but not the holes.
  EXPECT_GT(heap.resident(), full / 2);
  heap.take(100'000);
  EXPECT_GT(heap.resident(), full);
  for (int i = 0; i < 15; ++i) heap.take(kSmall);
  const std::int64_t filled = heap.resident();
  EXPECT_LT(filled, full + 100'000 + 1000);
  // When all is free, the heap is cut.
  for (int i = 0; i < 35; ++i) heap.give(kSmall);
  heap.give(100'000);
  EXPECT_LT(heap.resident(), 200'000);
  EXPECT_GT(heap.resident(), 0);
}

TEST(ResidentMemoryTest, DoesNotKeepTheMemoryOfKernels) {
  constexpr std::int64_t kBlock = kMiB;
  ResidentMemory memory(2 * kBlock);
  memory.take_unkept(MemoryUse::activations, kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], kBlock);
  memory.take_unkept(MemoryUse::activations, -kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::activations)], 0);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], 0);
}

TEST(ResidentMemoryTest, KeepsLargeBlocksUpToItsLimit) {
  constexpr std::int64_t kBlock = kMiB;
  ResidentMemory memory(2 * kBlock);
  for (int i = 0; i < 3; ++i) memory.take(MemoryUse::units, kBlock);
  for (int i = 0; i < 3; ++i) memory.give(MemoryUse::units, kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], 2 * kBlock);
  // Taken again, it is no longer kept; another size is new.
  memory.take(MemoryUse::units, kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], kBlock);
  memory.take(MemoryUse::units, kBlock + 4096);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], kBlock);
}

// Two units of one parameter of 4 MiB each. Forward keeps 1 MiB per unit and
// sample.
PlannedModel two_units() {
  PlannedModel model;
  model.num_units = 2;
  for (const std::size_t unit : {0, 1}) {
    model.parameters.push_back(
        {.name = std::to_string(unit),
         .num_elements = 1 << 20,
         .num_rows = 1024,
         .unit = unit});
  }
  return model;
}

StepTrace trace_of_two_units() {
  constexpr double kPerSample = kMiB;
  return {
      {{.kind = Kind::read, .index = 0},
       {.kind = Kind::allocate, .index = 0, .bytes_per_sample = kPerSample},
       {.kind = Kind::read, .index = 1},
       {.kind = Kind::allocate, .index = 1, .bytes_per_sample = kPerSample},
       {.kind = Kind::end_of_forward},
       {.kind = Kind::read, .index = 1},
       {.kind = Kind::allocate, .index = 2, .fixed_bytes = 4 * kPerSample},
       {.kind = Kind::gradient, .index = 1, .allocation = 2},
       {.kind = Kind::release, .index = 1},
       {.kind = Kind::read, .index = 0},
       {.kind = Kind::allocate, .index = 3, .fixed_bytes = 4 * kPerSample},
       {.kind = Kind::gradient, .index = 0, .allocation = 3},
       {.kind = Kind::release, .index = 0}},
      4};
}

MemoryRow simulate(const MemoryCase& at, StepSettings settings) {
  settings.keeps_freed_blocks = false;
  return detail::simulate_step(two_units(), trace_of_two_units(), at, settings);
}

TEST(StepSimulation, CountsAReplica) {
  const MemoryRow row = simulate({.micro_batch = 8}, {.num_temporaries = 0});
  // When the first gradient is complete, both units' activations are there.
  EXPECT_EQ(row.weights, 8 * kMiB);
  EXPECT_EQ(row.optimizer_state, 16 * kMiB);
  EXPECT_EQ(row.activations, 16 * kMiB);
  EXPECT_EQ(row.gradients, 4 * kMiB);
  EXPECT_EQ(row.total(), 44 * kMiB);
}

TEST(StepSimulation, CountsTheSlotsThatMessagesGoThrough) {
  constexpr std::int64_t kSlot = kMiB / 4;
  const auto added = [](const MemoryCase& at) {
    return simulate(at, {.num_temporaries = 0, .slot_bytes = kSlot}).total() -
        simulate(at, {.num_temporaries = 0}).total();
  };
  EXPECT_EQ(added({}), 0U);
  // Buckets are averaged where they lie.
  EXPECT_EQ(added({.num_ranks = 2}), 0U);
  EXPECT_EQ(
      added({.split = MemorySplit::zero_1, .num_ranks = 2, .num_shards = 2}),
      2U * kSlot);
}

TEST(StepSimulation, CountsTheOptimizersTemporaries) {
  const MemoryRow row = simulate({.micro_batch = 1}, {.num_temporaries = 2});
  EXPECT_EQ(row.activations, 0U);
  EXPECT_EQ(row.gradients, 8 * kMiB);
  EXPECT_EQ(row.workspace, 8 * kMiB);
  EXPECT_EQ(row.total(), 40 * kMiB);
}

TEST(StepSimulation, CountsBucketsOfReplicas) {
  MemoryCase at{.num_ranks = 2, .micro_batch = 8};
  EXPECT_EQ(simulate(at, {.num_temporaries = 0}).buckets, 8 * kMiB);
  const MemoryRow views =
      simulate(at, {.num_temporaries = 0, .gradient_as_bucket_view = true});
  EXPECT_EQ(views.gradients, 0U);
  EXPECT_EQ(views.buckets, 8 * kMiB);
}

TEST(StepSimulation, KeepsGradientsOfEarlierMicroSteps) {
  const MemoryRow row = simulate(
      {.micro_batch = 8, .accumulation_steps = 2}, {.num_temporaries = 0});
  // Both gradients from before, and the one that is being added.
  EXPECT_EQ(row.gradients, 8 * kMiB);
  EXPECT_EQ(row.activations, 20 * kMiB);
}

TEST(StepSimulation, DividesGradientsAndStateWithZero2) {
  const MemoryRow row = simulate(
      {.split = MemorySplit::zero_2,
       .num_ranks = 2,
       .num_shards = 2,
       .micro_batch = 8},
      {.num_temporaries = 0});
  EXPECT_EQ(row.weights, 8 * kMiB);
  EXPECT_EQ(row.optimizer_state, 8 * kMiB);
  // The gradient on its way, and the other rank's half of this rank's rows.
  EXPECT_EQ(row.units, 6 * kMiB);
  EXPECT_EQ(row.activations, 16 * kMiB);
}

TEST(StepSimulation, ComputesIn16BitsInEveryStage) {
  const StepSettings settings{
      .num_temporaries = 0, .computes_in_16_bits = true};
  MemoryCase at{
      .split = MemorySplit::zero_1,
      .num_ranks = 2,
      .num_shards = 2,
      .precision = FloatType::bf16,
      .micro_batch = 8};
  MemoryRow row = simulate(at, settings);
  EXPECT_EQ(row.weights, 4 * kMiB);
  // AdamW's state and shards in fp32.
  EXPECT_EQ(row.optimizer_state, 12 * kMiB);
  at.split = MemorySplit::full_shard;
  row = simulate(at, settings);
  EXPECT_EQ(row.weights, 4 * kMiB);
  EXPECT_EQ(row.optimizer_state, 8 * kMiB);
}

TEST(StepSimulation, GathersUnitsOfAFullShard) {
  const MemoryRow row = simulate(
      {.split = MemorySplit::full_shard,
       .num_ranks = 4,
       .num_shards = 4,
       .micro_batch = 8},
      {.num_temporaries = 0});
  EXPECT_EQ(row.weights, 2 * kMiB);
  EXPECT_EQ(row.optimizer_state, 4 * kMiB);
  // When the first gradient is complete, only the last unit is gathered.
  EXPECT_EQ(row.units, 8 * kMiB);
  EXPECT_EQ(row.activations, 16 * kMiB);
}

// Up to 32 shards, whose shares are not yet so small that they come from the C
// library's heap, which does not return them.
TEST(StepSimulation, GrowsWithTheBatchAndShrinksWithTheShards) {
  EXPECT_TRUE(rc::check([] {
    MemoryCase at{
        .split = MemorySplit::hybrid_shard,
        .num_ranks = 64,
        .num_shards = 1 << *rc::gen::inRange(1, 5),
        .micro_batch = *rc::gen::inRange<std::int64_t>(1, 64)};
    const auto total = simulate(at, {}).total();
    ++at.micro_batch;
    RC_ASSERT(simulate(at, {}).total() >= total);
    --at.micro_batch;
    at.num_shards *= 2;
    RC_ASSERT(simulate(at, {}).total() <= total);
  }));
}

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
  const MemoryPlan plan =
      accelerator.plan_memory(module, torch::randn({6, 4}), {.num_ranks = 2});
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
  // It trains.
  module->forward(torch::randn({6, 4})).sum().backward();
}

TEST(PlanMemory, CountsParametersExactly) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  auto module = net();
  const MemoryPlan plan = accelerator.plan_memory(
      module, torch::randn({64, 256}), {.num_ranks = 2, .num_local_ranks = 2});
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
    return accelerator.plan_memory(
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
      "the optimizer \"adamx\" is not one of");
  expect_error<ConfigError>(
      [&] { static_cast<void>(plan({.unit_classes = {"Nothing"}})); },
      "Nothing");
}

TEST(PlanMemory, CastsInputsAsAFullShardDoes) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  nn::Sequential module(
      nn::LayerNorm(nn::LayerNormOptions({64})), nn::Linear(64, 64));
  const MemoryPlanOptions options{
      .num_ranks = 2, .precisions = {FloatType::bf16}};
  const MemoryPlan cast =
      accelerator.plan_memory(module, torch::ones({4, 64}), options);
  EXPECT_EQ(cast.notes().size(), 1U);
  // Normalisation refuses fp32 inputs beside weights in bf16.
  const MemoryPlan own = accelerator.plan_memory(
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
  EXPECT_GE(activations(accelerator.plan_memory(module, batch, options)), held);
  // A loss whose batch nothing holds after the forward.
  const MemoryPlan freed = accelerator.plan_memory(
      module,
      [&](std::int64_t n) {
        return (torch::ones({n, 1 << 16}).sum() * module->bias).sum();
      },
      options);
  EXPECT_LT(
      activations(freed),
      activations(accelerator.plan_memory(module, batch, options)));
}

TEST(PlanMemory, CountsFreedBlocksThatAreKept) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  nn::Sequential module(nn::Linear(1024, 1024), nn::Linear(1024, 1024));
  const auto total = [&](bool keep) {
    return accelerator
        .plan_memory(
            module,
            torch::ones({2, 1024}),
            {.num_ranks = 2,
             .precisions = {FloatType::fp32},
             .keep_freed_blocks = keep})
        .row(MemorySplit::full_shard)
        .total();
  };
  EXPECT_GT(total(true), total(false));
}

TEST(PlanMemory, NamesStepsThatItCannotPlan) {
  const Accelerator accelerator({.cpu = true, .journal = false});
  auto module = net();
  auto* const allocator = c10::GetCPUAllocator();
  const auto plan = [&](const auto& loss_of) {
    static_cast<void>(accelerator.plan_memory(
        module, std::function<at::Tensor(std::int64_t)>(loss_of)));
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
      "calls other operators with 8 samples than with 16");
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
        static_cast<void>(accelerator.plan_memory(empty, torch::ones({2, 2})));
      },
      "\"weight\" is on meta");
}

}  // namespace plan_memory_test
}  // namespace accelerate
