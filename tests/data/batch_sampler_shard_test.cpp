#include "data/order/batch_sampler_shard.h"

#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace batch_plan_test {

using Batches = std::vector<std::vector<std::int64_t>>;
using testing::expect_error;

Batches batches_of(BatchSamplerShardOptions options, int rank) {
  options.rank = rank;
  const BatchSamplerShard plan(options);
  Batches batches;
  for (std::int64_t i = 0; i < plan.size(); ++i)
    batches.push_back(plan.positions(i));
  return batches;
}

TEST(BatchSamplerShard, GivesWholeBatchesToTheRanksInTurn) {
  const BatchSamplerShardOptions options{
      .num_samples = 10, .batch_size = 2, .count = 3};
  EXPECT_EQ(batches_of(options, 0), (Batches{{0, 1}, {6, 7}}));
  EXPECT_EQ(batches_of(options, 1), (Batches{{2, 3}, {8, 9}}));
  EXPECT_EQ(batches_of(options, 2), (Batches{{4, 5}, {0, 1}}));
}

TEST(BatchSamplerShard, LeavesTheLastRoundAsItIsWithoutEvenBatches) {
  const BatchSamplerShardOptions options{
      .num_samples = 5, .batch_size = 2, .count = 4, .even_batches = false};
  EXPECT_EQ(batches_of(options, 2), (Batches{{4}}));
  EXPECT_EQ(batches_of(options, 3), Batches{});
}

TEST(BatchSamplerShard, RepeatsATinyDatasetAsOftenAsNeeded) {
  const BatchSamplerShardOptions options{
      .num_samples = 1, .batch_size = 4, .count = 3};
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(batches_of(options, rank), (Batches{{0, 0, 0, 0}}));
}

TEST(BatchSamplerShard, KeepsTheShortLastBatchOfOneRank) {
  EXPECT_EQ(
      batches_of({.num_samples = 7, .batch_size = 3}, 0),
      (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
}

TEST(BatchSamplerShard, HasNoBatchesOfAnEmptyDataset) {
  EXPECT_EQ(
      batches_of({.num_samples = 0, .batch_size = 3, .count = 2}, 1),
      Batches{});
}

TEST(BatchSamplerShard, CountsTheRealSamplesOfTheLastRound) {
  const BatchSamplerShard plan({.num_samples = 7, .batch_size = 2, .count = 2});
  EXPECT_EQ(plan.remainder(0), 0);
  EXPECT_EQ(plan.remainder(1), 3);
}

TEST(BatchSamplerShard, RefusesSizesThatDoNotDivide) {
  expect_error<ConfigError>(
      [] {
        BatchSamplerShard(
            {.num_samples = 8,
             .batch_size = 3,
             .count = 2,
             .split_batches = true});
      },
      "make batch_size a multiple of 2");
  expect_error<ConfigError>(
      [] { BatchSamplerShard({.num_samples = 8, .batch_size = 0}); },
      "at least 1");
}

TEST(BatchSamplerShard, GivesEverySampleToOneRankOnce) {
  EXPECT_TRUE(rc::check([] {
    const int count = *rc::gen::inRange(1, 6);
    BatchSamplerShardOptions options{
        .num_samples = *rc::gen::inRange<std::int64_t>(0, 100),
        .batch_size = *rc::gen::inRange<std::int64_t>(1, 8) * count,
        .count = count,
        .split_batches = *rc::gen::arbitrary<bool>(),
        .even_batches = *rc::gen::arbitrary<bool>()};
    std::vector<int> seen(static_cast<std::size_t>(options.num_samples), 0);
    std::int64_t repeated = 0;
    std::int64_t most = 0;
    for (int rank = 0; rank < count; ++rank) {
      const Batches batches = batches_of(options, rank);
      most = std::max(most, static_cast<std::int64_t>(batches.size()));
      for (const auto& batch : batches) {
        for (const std::int64_t p : batch)
          repeated += seen[static_cast<std::size_t>(p)]++ > 0;
      }
    }
    for (const int times : seen) RC_ASSERT(times >= 1);
    if (!options.even_batches || count == 1) RC_ASSERT(repeated == 0);
    // gather_for_metrics removes exactly the repeated samples.
    if (options.num_samples > 0) {
      const BatchSamplerShard plan(options);
      const std::int64_t remainder = plan.remainder(plan.size() - 1);
      RC_ASSERT(
          repeated == (remainder == 0 ? 0 : plan.round_size() - remainder));
    }
  }));
}

}  // namespace batch_plan_test
}  // namespace accelerate::detail
