// Tests plan_layout: layouts for the calling ranks, at their own speeds.
#include <accelerate/accelerate.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <vector>

#include "support/run_on_ranks.h"
#include "train/plan/clocked.h"

namespace accelerate {
namespace layout_plan_test {

using testing::run_on_ranks;

const TransformerShape kShape{
    .num_layers = 4,
    .hidden_size = 64,
    .num_heads = 4,
    .vocabulary = 100};

LayoutPlanOptions small_options() {
  return {
      .measuring_seconds = 0,
      .sequence_length = 64,
      .batch_tokens = 64 * 16,
      .precision = FloatType::fp32};
}

TEST(AcceleratorPlan, IsTheSameOnAllRanks) {
  for (const int num_ranks : {1, 2, 4}) {
    std::vector<std::string> texts;
    std::mutex mutex;
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      const LayoutPlan plan =
          plan_layout(accelerator.world(), kShape, small_options());
      ASSERT_FALSE(plan.layouts().empty());
      EXPECT_EQ(plan.best().layout.num_ranks(), num_ranks);
      const std::lock_guard lock(mutex);
      texts.push_back(plan.explain());
    });
    ASSERT_EQ(texts.size(), num_ranks);
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  }
}

TEST(AcceleratorPlan, PlansForOtherRanksAndSpeedsIfGiven) {
  const Accelerator accelerator;
  LayoutPlanOptions options = small_options();
  options.num_ranks = 16;
  options.cluster = ClusterSpeeds();
  EXPECT_EQ(
      plan_layout(accelerator.world(), kShape, options).explain(),
      plan_layout(kShape, options).explain());
}

TEST(AcceleratorPlan, RefusesToMeasureForLessThanNoTime) {
  const Accelerator accelerator;
  LayoutPlanOptions options = small_options();
  options.measuring_seconds = -1;
  EXPECT_THROW(
      static_cast<void>(plan_layout(accelerator.world(), kShape, options)),
      ConfigError);
  // Nothing is measured.
  options.cluster = ClusterSpeeds();
  EXPECT_FALSE(
      plan_layout(accelerator.world(), kShape, options).layouts().empty());
}

TEST(Clocked, CallsAsOftenOnAllRanksAndFewTimesWithoutTime) {
  std::vector<std::vector<int>> counts;
  std::mutex mutex;
  run_on_ranks(4, [&](const WorldOptions& options) {
    const World world(options);
    std::vector<int> own;
    // Some ranks have more work.
    const auto call = [&] {
      ++own.back();
      volatile double sum = 0;
      for (int i = 0; i < 1000 * (1 + world.rank()); ++i) sum = sum + i;
    };
    detail::Clocked hurried(world, /*seconds=*/0);
    detail::Clocked patient(world, /*seconds=*/100);
    for (detail::Clocked* const clocked : {&hurried, &hurried, &patient}) {
      own.push_back(0);
      const double left = clocked->left();
      EXPECT_GT(clocked->seconds_of(call), 0);
      EXPECT_LT(clocked->left(), left);
    }
    const std::lock_guard lock(mutex);
    counts.push_back(own);
  });
  ASSERT_EQ(counts.size(), 4);
  for (const std::vector<int>& own : counts) {
    EXPECT_EQ(own, counts[0]);
    EXPECT_EQ(own[0], 2);
    EXPECT_EQ(own[1], 2);
    EXPECT_GE(own[2], 4);
  }
}

TEST(ClusterSpeeds, AreMeasuredOnAllRanks) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const ClusterSpeeds cluster = measure_cluster(accelerator.world(), 1.0);
    EXPECT_GT(cluster.flops, 1e6);
    EXPECT_GT(cluster.fp32_flops, 1e8);
    EXPECT_GT(cluster.memory_bytes_per_second, 1e7);
    EXPECT_GT(cluster.seconds_per_operator, 1e-8);
    EXPECT_GT(cluster.inside_node.latency_seconds, 0);
    EXPECT_GT(cluster.inside_node.bytes_per_second, 1e5);
    EXPECT_GT(cluster.memory_bytes, 1'000'000);
    // Ranks share processors, but not devices.
    const int shared = cluster.measured.shared_processors;
    EXPECT_EQ(shared > 0, accelerator.device().is_cpu());
    EXPECT_GT(cluster.measured.seconds_per_stepped_parameter, 1e-8);
    EXPECT_EQ(cluster.expert_flops, 0);
    std::map<int, std::vector<double>> tokens;
    for (const detail::LayerSlowdown& each : cluster.measured.layer_slowdowns) {
      EXPECT_GT(each.factor, 0);
      tokens[each.tensor].push_back(each.tokens);
    }
    // Whole layers, and layers that two ranks split.
    ASSERT_EQ(tokens.size(), 2);
    for (std::size_t i = 0; i < tokens[1].size(); ++i)
      EXPECT_EQ(tokens[1][i], std::int64_t{256} << i);
    for (std::size_t i = 0; i < tokens[2].size(); ++i)
      EXPECT_EQ(tokens[2][i], std::int64_t{256} << 2 * i);
  });
}

TEST(ClusterSpeeds, HaveTheSmallestMicroBatchesWithoutTimeForMore) {
  run_on_ranks(4, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const ClusterSpeeds cluster =
        measure_cluster(accelerator.world(), kShape, 64, 1024, /*seconds=*/0);
    ASSERT_EQ(cluster.measured.layer_slowdowns.size(), 3);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(cluster.measured.layer_slowdowns[i].tokens, 64);
      EXPECT_EQ(cluster.measured.layer_slowdowns[i].tensor, 1 << i);
      EXPECT_GE(cluster.measured.layer_slowdowns[i].reduce_seconds, 0);
    }
    EXPECT_EQ(cluster.measured.layer_slowdowns[0].reduce_seconds, 0);
    EXPECT_GE(cluster.measured.seconds_per_ring_block, 0);
    EXPECT_GT(cluster.fp32_flops, 1e6);
    EXPECT_EQ(
        cluster.measured.seconds_per_message > 0,
        accelerator.device().is_cpu());
  });
}

TEST(ClusterSpeeds, AreMeasuredForModelsWithExperts) {
  TransformerShape shape = kShape;
  shape.num_experts = 16;
  shape.top_k = 4;
  shape.expert_intermediate_size = 32;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const ClusterSpeeds cluster = measure_cluster(
        accelerator.world(), shape, 64, /*most_tokens=*/1024, /*seconds=*/0.5);
    EXPECT_GT(cluster.expert_flops, 1e6);
    EXPECT_GE(cluster.measured.seconds_per_routed_token, 0);
    LayoutPlanOptions options = small_options();
    options.cluster = cluster;
    const LayoutPlan plan = plan_layout(accelerator.world(), shape, options);
    EXPECT_EQ(plan.best().layout.num_ranks(), 2);
  });
}

}  // namespace layout_plan_test
}  // namespace accelerate
