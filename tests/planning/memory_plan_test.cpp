#include <accelerate/memory_plan.h>

#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "planning/memory_estimate.h"
#include "support/expect_error.h"

namespace accelerate {
namespace memory_plan_test {

using testing::expect_error;

// A model of 1000 bytes whose activations take 100 bytes per sample, or 10 if
// they are recomputed.
MemoryRow estimate(const MemoryCase& at) {
  const auto shards = static_cast<std::uint64_t>(at.num_shards);
  const bool shards_weights = at.split == MemorySplit::full_shard ||
      at.split == MemorySplit::hybrid_shard;
  return {
      .weights = shards_weights ? 1000 / shards : 1000,
      .optimizer_state = 2000 / shards,
      .activations = static_cast<std::uint64_t>(at.micro_batch) *
          (at.recomputes ? 10U : 100U)};
}

MemoryPlan plan_of(int num_ranks, std::int64_t batch_size) {
  return {
      {.num_ranks = num_ranks,
       .num_local_ranks = 2,
       .batch_size = batch_size,
       .precisions = {FloatType::fp32}},
      estimate};
}

TEST(MemoryPlanTest, HasARowForEachWay) {
  EXPECT_EQ(plan_of(1, 4).rows().size(), 2U);
  EXPECT_EQ(plan_of(2, 4).rows().size(), 8U);
  const MemoryPlan plan = plan_of(4, 4);
  EXPECT_EQ(plan.rows().size(), 10U);
  const MemoryRow zero = plan.row(MemorySplit::zero_2);
  EXPECT_EQ(zero.weights, 1000U);
  EXPECT_EQ(zero.optimizer_state, 500U);
  EXPECT_EQ(zero.activations, 400U);
  EXPECT_EQ(zero.total(), 1900U);
  EXPECT_EQ(
      plan.row(MemorySplit::hybrid_shard, FloatType::fp32, true).total(),
      1540U);
  EXPECT_NE(plan.table().find("hybrid shard over 2"), std::string::npos);
}

TEST(MemoryPlanTest, NamesWhatFitsTheCheapestFirst) {
  const auto fits = plan_of(2, 4).fits(2250);
  // Replicas take at least 3000 with any batch.
  ASSERT_EQ(fits.size(), 6U);
  EXPECT_EQ(
      fits[0].row.at,
      (MemoryCase{MemorySplit::zero_1, 2, 2, FloatType::fp32, false, 2, 2}));
  EXPECT_EQ(fits[0].row.total(), 2200U);
  EXPECT_EQ(fits[1].row.at.split, MemorySplit::zero_2);
  EXPECT_EQ(
      fits[2].row.at,
      (MemoryCase{
          MemorySplit::full_shard, 2, 2, FloatType::fp32, false, 4, 1}));
  EXPECT_TRUE(fits[3].row.at.recomputes);
  const std::string text = plan_of(2, 4).explain_fits(2250, 2);
  EXPECT_NE(text.find("ZeRO-1 over 2"), std::string::npos);
  EXPECT_EQ(text.find("full shard"), std::string::npos);
}

TEST(MemoryPlanTest, MakesMicroStepsEqual) {
  // Three samples fit, so ten take four micro-steps of at most three.
  const MemoryFit fit = plan_of(1, 10).fits(3300).front();
  EXPECT_EQ(fit.row.at.accumulation_steps, 4);
  EXPECT_EQ(fit.row.at.micro_batch, 3);
}

TEST(MemoryPlanTest, SaysWhatWouldFitIfNothingDoes) {
  const MemoryPlan plan = plan_of(2, 4);
  EXPECT_TRUE(plan.fits(1000).empty());
  EXPECT_EQ(plan.smallest().total(), 1510U);
  EXPECT_EQ(
      plan.explain_fits(1000),
      "Nothing fits into 1000 bytes: the smallest needs 1.47 KB per rank (full "
      "shard over 2, precision no, recomputing activations, one sample at a "
      "time).\n");
}

TEST(MemoryPlanTest, BeginsASearchForABatchSize) {
  const MemoryPlan plan = plan_of(1, 64);
  EXPECT_EQ(plan.starting_batch_size(3550), 5);
  EXPECT_EQ(
      plan.starting_batch_size(
          3550, MemorySplit::replicated, FloatType::fp32, true),
      55);
  EXPECT_EQ(plan.starting_batch_size(10), 1);
}

TEST(MemoryPlanTest, RefusesTheImpossible) {
  expect_error<ConfigError>(
      [] { plan_of(0, 1); },
      "num_ranks, num_local_ranks and batch_size must be at least 1");
  expect_error<ConfigError>(
      [] { static_cast<void>(plan_of(2, 1).row(MemorySplit::hybrid_shard)); },
      "no row for hybrid shard with precision no");
  expect_error<ConfigError>(
      [] {
        static_cast<void>(plan_of(4, 1).row(
            {.split = MemorySplit::hybrid_shard,
             .num_ranks = 4,
             .num_shards = 3}));
      },
      "hybrid shard over 3 of 4 ranks");
}

detail::ModelTree transformer() {
  detail::ModelTree model;
  model.num_parameters = 1000;
  model.transformer = TransformerShape{
      .num_layers = 2, .hidden_size = 8, .num_heads = 2, .vocabulary = 10};
  return model;
}

MemoryPlan::Facts
on(int num_ranks, int num_local_ranks, std::vector<FloatType> precisions) {
  return {
      .num_ranks = num_ranks,
      .num_local_ranks = num_local_ranks,
      .precisions = std::move(precisions)};
}

TEST(TransformerPlan, CountsWhatDevicesSplitOfALayerASequenceAndTheLayers) {
  detail::TrainingPlan training;
  training.sequence_length = 4;
  const auto plan_with = [&](int tensor, int context, int pipeline) {
    MemoryPlan::Facts facts = on(4, 4, {FloatType::fp32});
    facts.tensor = tensor;
    facts.context = context;
    facts.pipeline = pipeline;
    return detail::plan_transformer(transformer(), 400, training, facts)
        .row(MemorySplit::replicated);
  };
  const MemoryRow split = plan_with(2, 1, 1);
  EXPECT_EQ(split.weights, 2000U);
  // s b h (10 + (24 + 5 a s / h) / t) x 2 bytes of each layer.
  EXPECT_EQ(split.activations, 2U * 4 * 8 * 49 + 4U * 10 * 4 / 2);
  EXPECT_EQ(split.buckets, 2000U);
  const MemoryRow shorter = plan_with(1, 2, 1);
  EXPECT_EQ(shorter.weights, 4000U);
  // 34 + 5 a s / h with s = 2 is 36.5.
  EXPECT_EQ(shorter.activations, 2U * 2 * 8 * 73 + 2U * 10 * 4);
  // A stage has one of two layers; the embedding of 10 x 8 is on one stage.
  const MemoryRow stage = plan_with(1, 1, 2);
  EXPECT_EQ(stage.weights, 4U * (920 / 2 + 80));
  EXPECT_EQ(stage.activations, 4U * 8 * 39 * 2 + 4U * 10 * 4);
  EXPECT_EQ(plan_with(2, 1, 2).buckets, 0U);
  // The first of two stages has two micro-steps in flight.
  MemoryPlan::Facts facts = on(4, 4, {FloatType::fp32});
  facts.pipeline = 2;
  EXPECT_EQ(
      detail::plan_transformer(transformer(), 400, training, facts)
          .row({.num_ranks = 4, .accumulation_steps = 3, .pipeline = 2})
          .activations,
      2U * 4 * 8 * 39 * 2);
  expect_error<ConfigError>(
      [&] { plan_with(3, 1, 1); }, "must divide the ranks");
}

TEST(TransformerPlan, KeepsInputsOfLinearLayersInFloat8) {
  detail::TrainingPlan training;
  training.sequence_length = 4;
  MemoryPlan::Facts facts = on(1, 1, {FloatType::bf16});
  facts.uses_fp8 = true;
  const MemoryPlan plan =
      detail::plan_transformer(transformer(), 400, training, facts);
  EXPECT_EQ(
      plan.row(MemorySplit::replicated, FloatType::bf16).activations,
      2U * 4 * 8 * (27 + 5) + 4U * 10 * 4);
  EXPECT_NE(plan.table().find("fp8"), std::string::npos);
}

TEST(TransformerPlan, HasOnlyWhatWasAskedFor) {
  detail::TrainingPlan training;
  training.sequence_length = 4;
  MemoryPlan::Facts facts = on(8, 8, {FloatType::fp32});
  facts.num_shards = 4;
  facts.recomputes = true;
  const MemoryPlan plan =
      detail::plan_transformer(transformer(), 400, training, facts);
  ASSERT_EQ(plan.rows().size(), 1U);
  EXPECT_EQ(plan.rows()[0].at.num_shards, 4);
  for (const MemoryFit& fit : plan.fits(1 << 20)) {
    EXPECT_EQ(fit.row.at.num_shards, 4);
    EXPECT_TRUE(fit.row.at.recomputes);
  }
  facts.num_shards = 3;
  expect_error<ConfigError>(
      [&] { detail::plan_transformer(transformer(), 400, training, facts); },
      "cannot share a model 3 ways");
}

TEST(TransformerPlan, CountsWhatEachSplitDivides) {
  detail::TrainingPlan training;
  training.sequence_length = 4;
  const MemoryPlan plan = detail::plan_transformer(
      transformer(), 400, training, on(4, 4, {FloatType::fp32}));
  const MemoryRow whole = plan.row(MemorySplit::replicated);
  EXPECT_EQ(whole.weights, 4000U);
  EXPECT_EQ(whole.gradients, 4000U);
  EXPECT_EQ(whole.buckets, 4000U);
  EXPECT_EQ(whole.optimizer_state, 8000U);
  // Two layers of s b h (34 + 5 a s / h) x 2 bytes, and the logits.
  EXPECT_EQ(whole.activations, 2U * 4 * 8 * (34 + 5) * 2 + 4U * 10 * 4);
  const MemoryRow zero = plan.row(MemorySplit::zero_2);
  EXPECT_EQ(zero.weights, 4000U);
  EXPECT_EQ(zero.gradients, 1000U);
  EXPECT_EQ(zero.optimizer_state, 2000U);
  EXPECT_EQ(zero.units, 800U);
  const MemoryRow full = plan.row(MemorySplit::full_shard);
  EXPECT_EQ(full.weights, 1000U);
  EXPECT_EQ(full.units, 1200U);
  EXPECT_EQ(
      plan.row({.split = MemorySplit::zero_1,
                .num_ranks = 4,
                .num_shards = 4,
                .accumulation_steps = 2})
          .gradients,
      4000U);
}

TEST(TransformerPlan, NeedsAShapeAndALength) {
  detail::TrainingPlan training;
  expect_error<ConfigError>(
      [&] {
        detail::plan_transformer(
            transformer(), 400, training, on(1, 1, {FloatType::fp32}));
      },
      "--sequence_length");
  expect_error<ConfigError>(
      [&] { detail::plan_transformer({}, 400, training, on(1, 1, {})); },
      "config.json");
}

TEST(TransformerPlan, CountsWhatStaysInMemoryBesideTheDisk) {
  detail::TrainingPlan training;
  training.sequence_length = 16;
  training.disk_buffers = 10;
  const auto row = [&](MemorySplit split, int ranks) {
    return detail::plan_transformer(
               transformer(),
               400,
               training,
               on(ranks, ranks, {FloatType::fp32}))
        .row(
            {.split = split,
             .num_ranks = ranks,
             .num_shards = split == MemorySplit::replicated ? 1 : ranks});
  };
  const MemoryRow sharded = row(MemorySplit::full_shard, 4);
  training.optimizer_is_on_disk = true;
  const MemoryRow optimizer = row(MemorySplit::full_shard, 4);
  EXPECT_EQ(optimizer.weights, sharded.weights);
  EXPECT_EQ(optimizer.gradients + optimizer.optimizer_state, 0U);
  EXPECT_EQ(optimizer.units, sharded.units + 10);
  training.weights_are_on_disk = true;
  EXPECT_EQ(row(MemorySplit::full_shard, 4).weights, 0U);
  EXPECT_EQ(row(MemorySplit::full_shard, 4).units, sharded.units + 2 * 10);
  EXPECT_EQ(
      row(MemorySplit::full_shard, 4).on_disk,
      sharded.weights + sharded.gradients + sharded.optimizer_state);
  EXPECT_EQ(row(MemorySplit::replicated, 1).weights, 0U);
  // Replicas keep their state.
  EXPECT_EQ(row(MemorySplit::replicated, 4).weights, sharded.weights * 4);
}

TEST(TransformerPlan, GrowsWithTheBatchAndShrinksWithTheShards) {
  EXPECT_TRUE(rc::check([] {
    detail::TrainingPlan training;
    training.sequence_length = *rc::gen::inRange(1, 4096);
    const auto batch = *rc::gen::inRange<std::int64_t>(1, 64);
    const int shards = 1 << *rc::gen::inRange(1, 6);
    const MemoryPlan plan = detail::plan_transformer(
        transformer(), 400, training, on(64, 64, {FloatType::bf16}));
    MemoryCase at{
        .split = MemorySplit::hybrid_shard,
        .num_ranks = 64,
        .num_shards = shards,
        .precision = FloatType::bf16,
        .recomputes = *rc::gen::arbitrary<bool>(),
        .micro_batch = batch};
    const auto total = plan.row(at).total();
    at.num_shards *= 2;
    RC_ASSERT(plan.row(at).total() < total);
    at.num_shards = shards;
    at.micro_batch = batch + 1;
    RC_ASSERT(plan.row(at).total() > total);
  }));
}

TEST(TransformerPlan, EveryFitFits) {
  EXPECT_TRUE(rc::check([] {
    detail::TrainingPlan training;
    training.sequence_length = 16;
    training.batch_size = *rc::gen::inRange<std::int64_t>(1, 40);
    const MemoryPlan plan = detail::plan_transformer(
        transformer(),
        400,
        training,
        on(8, 4, {FloatType::fp32, FloatType::bf16}));
    const auto limit = *rc::gen::inRange<std::uint64_t>(1, 200'000);
    double last = 0;
    for (const MemoryFit& fit : plan.fits(limit)) {
      RC_ASSERT(fit.row.total() <= limit);
      RC_ASSERT(
          fit.row.at.micro_batch * fit.row.at.accumulation_steps >=
          training.batch_size);
      RC_ASSERT(fit.relative_time >= last);
      last = fit.relative_time;
    }
    RC_ASSERT(plan.fits(limit).empty() == (plan.smallest().total() > limit));
  }));
}

}  // namespace memory_plan_test
}  // namespace accelerate
