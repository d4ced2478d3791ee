// Tests simulated steps of a rank: how strategies use memory.
#include <rapidcheck.h>

#include <accelerate/memory_plan.h>

#include "train/plan/step_simulation.h"

namespace accelerate {
namespace step_simulation_test {

using detail::PlannedModel;
using detail::StepSettings;
using detail::StepTrace;
using Kind = detail::TraceEvent::Kind;

constexpr std::uint64_t kMiB = 1 << 20;
// Each block from the system needs another page, for its header.
constexpr std::uint64_t kPage = 4096;

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
  // When the first gradient is complete, activations of both units are alive.
  EXPECT_EQ(row.weights, 8 * kMiB);
  EXPECT_EQ(row.optimizer_state, 16 * kMiB);
  EXPECT_EQ(row.activations, 16 * kMiB);
  EXPECT_EQ(row.gradients, 4 * kMiB);
  EXPECT_EQ(row.total(), 44 * kMiB + 9 * kPage);
}

TEST(StepSimulation, CountsTheSlotsThatMessagesGoThrough) {
  constexpr std::int64_t kSlot = kMiB / 4;
  const auto added = [](const MemoryCase& at) {
    return simulate(at, {.num_temporaries = 0, .slot_bytes = kSlot}).total() -
        simulate(at, {.num_temporaries = 0}).total();
  };
  EXPECT_EQ(added({}), 0U);
  // Initial values come through the two slots of the first rank, and buckets
  // are averaged in place.
  EXPECT_EQ(added({.num_ranks = 2}), 2U * kSlot / 2);
  EXPECT_EQ(added({.num_ranks = 8}), 2U * kSlot / 8);
  EXPECT_EQ(
      added({.split = MemorySplit::zero_1, .num_ranks = 2, .num_shards = 2}),
      2U * kSlot + 2 * kSlot / 2);
}

TEST(StepSimulation, CountsTheOptimizersTemporaries) {
  const MemoryRow row = simulate({.micro_batch = 1}, {.num_temporaries = 2});
  EXPECT_EQ(row.activations, 0U);
  EXPECT_EQ(row.gradients, 8 * kMiB);
  // Ten blocks: two temporaries, and the parameters, state and gradients.
  EXPECT_EQ(row.workspace, 8 * kMiB + 10 * kPage);
  EXPECT_EQ(row.total(), 40 * kMiB + 10 * kPage);
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
  // Both earlier gradients, and the one that is being added.
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
  // The gradient in flight, and this rank's rows from the other rank.
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
  // AdamW's state, and fp32 shards.
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

TEST(StepSimulation, CountsFreedBlocksThatAreKept) {
  const MemoryCase at{
      .split = MemorySplit::full_shard,
      .num_ranks = 2,
      .num_shards = 2,
      .micro_batch = 8};
  StepSettings settings{.num_temporaries = 0};
  const MemoryRow kept =
      detail::simulate_step(two_units(), trace_of_two_units(), at, settings);
  const MemoryRow not_kept = simulate(at, settings);
  EXPECT_EQ(kept.weights, not_kept.weights);
  EXPECT_EQ(kept.activations, not_kept.activations);
  EXPECT_GT(kept.total(), not_kept.total());
}

// Parameters that fit into the heap, and an otherwise empty step.
TEST(StepSimulation, CountsWhatDividingTheModelLeavesInTheHeap) {
  constexpr std::int64_t kNumElements = 16 << 10;
  PlannedModel model;
  for (int p = 0; p < 8; ++p) {
    model.parameters.push_back(
        {.name = std::to_string(p),
         .num_elements = kNumElements,
         .num_rows = 64,
         .unit = 0});
  }
  model.num_units = 1;
  const StepTrace trace{{{.kind = Kind::end_of_forward}}, 0};
  bool keeps_freed_blocks = true;
  const auto row = [&](const MemoryCase& at) {
    return detail::simulate_step(
        model,
        trace,
        at,
        {.state_bytes = 0,
         .num_temporaries = 0,
         .keeps_freed_blocks = keeps_freed_blocks});
  };
  constexpr std::uint64_t kWhole = 8 * 4 * kNumElements;
  EXPECT_EQ(row({}).weights, kWhole);
  EXPECT_LT(row({}).workspace, 2 * kPage);
  const MemoryCase halved{
      .split = MemorySplit::full_shard, .num_ranks = 2, .num_shards = 2};
  // Shards are in the arena, and the heap's free pages are returned.
  EXPECT_EQ(row(halved).weights, kWhole / 2);
  EXPECT_EQ(row(halved).workspace, 0U);
  // Otherwise shards of later parameters fill the place of a freed full
  // parameter, but the end of the heap stays in use.
  keeps_freed_blocks = false;
  const MemoryRow divided = row(halved);
  EXPECT_EQ(divided.weights, kWhole / 2);
  EXPECT_NEAR(
      static_cast<double>(divided.total()),
      static_cast<double>(kWhole + kWhole / 16),
      2 * kPage);
}

// Up to 32 shards: with more, shares would be small enough to come from the C
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

}  // namespace step_simulation_test
}  // namespace accelerate
