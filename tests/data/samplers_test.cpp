#include <accelerate/samplers.h>

#include <algorithm>
#include <map>
#include <set>

#include <rapidcheck.h>

#include <accelerate/data_loader.h>
#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace samplers_test {

using testing::expect_error;

std::vector<std::int64_t>
order_of(Sampler& sampler, std::uint64_t seed, std::uint64_t epoch) {
  sampler.begin_pass(seed, epoch);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < sampler.size(); ++i)
    order.push_back(sampler.at(i));
  return order;
}

// The expected orders are those of PyTorch 2.11.
TEST(RandomSampler, GivesTheOrderOfPyTorch) {
  RandomSampler ten(10);
  EXPECT_EQ(
      order_of(ten, 42, 0),
      (std::vector<std::int64_t>{2, 6, 1, 8, 4, 5, 0, 9, 3, 7}));
  EXPECT_EQ(
      order_of(ten, 42, 1),
      (std::vector<std::int64_t>{8, 4, 9, 0, 5, 1, 6, 7, 2, 3}));
  RandomSampler six(6);
  EXPECT_EQ(order_of(six, 0, 0), (std::vector<std::int64_t>{2, 5, 3, 0, 1, 4}));
}

TEST(RandomSampler, IsAPermutationUnlessItReplaces) {
  EXPECT_TRUE(rc::check([] {
    const auto size = *rc::gen::inRange<std::int64_t>(1, 50);
    const auto count = *rc::gen::inRange<std::int64_t>(0, 120);
    const auto replacement = *rc::gen::arbitrary<bool>();
    RandomSampler sampler(
        size, {.replacement = replacement, .num_samples = count});
    const auto order =
        order_of(sampler, *rc::gen::arbitrary<std::uint64_t>(), 3);
    RC_ASSERT(static_cast<std::int64_t>(order.size()) == count);
    std::map<std::int64_t, std::int64_t> times;
    for (const std::int64_t index : order) {
      RC_ASSERT(index >= 0 && index < size);
      ++times[index];
    }
    if (replacement) return;
    for (std::int64_t index = 0; index < size; ++index) {
      RC_ASSERT(
          times[index] >= count / size &&
          times[index] <= (count + size - 1) / size);
    }
  }));
}

TEST(WeightedRandomSampler, DrawsByWeight) {
  WeightedRandomSampler sampler({1, 0, 3}, 4000);
  std::map<std::int64_t, int> times;
  for (const std::int64_t index : order_of(sampler, 1, 0)) ++times[index];
  EXPECT_EQ(times.count(1), 0U);
  EXPECT_NEAR(times[0], 1000, 120);  // four standard deviations
  EXPECT_NE(order_of(sampler, 1, 0), order_of(sampler, 1, 1));
  EXPECT_EQ(order_of(sampler, 1, 0), order_of(sampler, 0, 1));
  WeightedRandomSampler without({1, 0, 3}, 2, /*replacement=*/false);
  const auto order = order_of(without, 5, 0);
  EXPECT_EQ(
      std::set<std::int64_t>(order.begin(), order.end()),
      (std::set<std::int64_t>{0, 2}));
}

TEST(Samplers, RefuseSamplesThatCannotBeDrawn) {
  expect_error<ConfigError>(
      [] { RandomSampler sampler(0, {.num_samples = 3}); }, "3 samples from 0");
  expect_error<ConfigError>(
      [] { WeightedRandomSampler sampler({0, 0}, 1); }, "0 are above 0");
  expect_error<ConfigError>(
      [] { WeightedRandomSampler sampler({1, -1}, 1); }, "negative or NaN");
  expect_error<ConfigError>(
      [] { WeightedRandomSampler sampler({1, 0}, 2, false); }, "without");
}

class Backwards final : public Sampler {
 public:
  [[nodiscard]] std::int64_t size() const override { return 4; }
  void begin_pass(std::uint64_t, std::uint64_t epoch) override {
    epoch_ = epoch;
  }
  [[nodiscard]] std::int64_t at(std::int64_t position) const override {
    return 6 + static_cast<std::int64_t>(epoch_) - position;
  }

 private:
  std::uint64_t epoch_ = 0;
};

TEST(DataLoader, TakesASamplerOfTheUsers) {
  DataLoader loader(
      TensorDataset{torch::arange(10)},
      {.batch_size = 3, .sampler = std::make_shared<Backwards>()});
  EXPECT_EQ(loader.size(), 2);
  std::vector<std::int64_t> seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x] : loader) {
      for (std::int64_t i = 0; i < x.size(0); ++i)
        seen.push_back(x[i].template item<std::int64_t>());
    }
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{6, 5, 4, 3, 7, 6, 5, 4}));
}

TEST(DataLoader, RefusesTwoOrders) {
  const auto make = [](const DataLoaderOptions& options) {
    DataLoader loader(TensorDataset{torch::arange(4)}, options);
  };
  expect_error<ConfigError>(
      [&] {
        make(
            {.shuffle = true,
             .sampler = std::make_shared<SequentialSampler>(4)});
      },
      "unset shuffle");
  expect_error<ConfigError>(
      [&] { make({.use_seedable_sampler = true}); }, "set shuffle");
}

TEST(LengthBucketSampler, GroupsEverySampleOnceByLengthWithinItsLimits) {
  EXPECT_TRUE(rc::check([] {
    const auto lengths = *rc::gen::container<std::vector<std::int64_t>>(
        rc::gen::inRange<std::int64_t>(1, 60));
    const LengthBucketOptions options{
        .batch_size = *rc::gen::inRange<std::int64_t>(1, 9),
        .max_items = *rc::gen::element(
            std::optional<std::int64_t>(), std::optional<std::int64_t>(100)),
        .shuffle = *rc::gen::arbitrary<bool>(),
        .batches_in_pool = *rc::gen::inRange<std::int64_t>(1, 5)};
    LengthBucketSampler sampler(lengths, options);
    sampler.begin_pass(*rc::gen::arbitrary<std::uint64_t>(), 2);
    std::vector<int> seen(lengths.size(), 0);
    for (std::int64_t i = 0; i < sampler.size(); ++i) {
      const auto batch = sampler.at(i);
      RC_ASSERT(!batch.empty());
      RC_ASSERT(static_cast<std::int64_t>(batch.size()) <= options.batch_size);
      std::int64_t longest = 0;
      for (const std::int64_t index : batch) {
        ++seen[static_cast<std::size_t>(index)];
        longest = std::max(longest, lengths[static_cast<std::size_t>(index)]);
      }
      if (options.max_items && batch.size() > 1) {
        RC_ASSERT(
            longest * static_cast<std::int64_t>(batch.size()) <=
            *options.max_items);
      }
    }
    RC_ASSERT(std::all_of(
        seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }));
}

using Batches = std::vector<std::vector<std::int64_t>>;

Batches buckets_of(
    const std::vector<std::int64_t>& lengths,
    const LengthBucketOptions& options,
    std::uint64_t epoch = 0) {
  LengthBucketSampler sampler(lengths, options);
  sampler.begin_pass(1, epoch);
  Batches batches;
  for (std::int64_t i = 0; i < sampler.size(); ++i)
    batches.push_back(sampler.at(i));
  return batches;
}

TEST(LengthBucketSampler, SortsPoolsOfItsBatches) {
  const std::vector<std::int64_t> lengths{4, 1, 3, 2};
  const auto buckets = [&](LengthBucketOptions options) {
    options.shuffle = false;
    return buckets_of(lengths, options);
  };
  EXPECT_EQ(buckets({.batch_size = 2}), (Batches{{1, 3}, {2, 0}}));
  EXPECT_EQ(buckets({.batch_size = 3}), (Batches{{1, 3, 2}, {0}}));
  EXPECT_EQ(
      buckets({.batch_size = 2, .max_items = 4}), (Batches{{1, 3}, {2}, {0}}));
  EXPECT_EQ(
      buckets({.batch_size = 2, .batches_in_pool = 1}),
      (Batches{{1, 0}, {3, 2}}));
}

TEST(LengthBucketSampler, GroupsAnewInEachEpochIfItShuffles) {
  const std::vector<std::int64_t> lengths(100, 1);
  for (const bool shuffles : {true, false}) {
    const LengthBucketOptions options{.batch_size = 4, .shuffle = shuffles};
    EXPECT_EQ(buckets_of(lengths, options), buckets_of(lengths, options));
    EXPECT_EQ(
        buckets_of(lengths, options) != buckets_of(lengths, options, 1),
        shuffles);
  }
}

TEST(DataLoader, TakesABatchSamplerOfTheUsers) {
  DataLoader loader(
      TensorDataset{torch::arange(4)},
      {.batch_sampler = std::make_shared<LengthBucketSampler>(
           std::vector<std::int64_t>{4, 1, 3, 2},
           LengthBucketOptions{.batch_size = 3, .shuffle = false})});
  Batches seen;
  for (auto& [x] : loader) {
    seen.emplace_back(
        x.template data_ptr<std::int64_t>(),
        x.template data_ptr<std::int64_t>() + x.numel());
  }
  EXPECT_EQ(seen, (Batches{{1, 3, 2}, {0}}));
}

TEST(LengthBucketSampler, PadsLessThanChance) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 2000; ++i)
    lengths.push_back(1 + (i * 7919) % 500);
  LengthBucketSampler sampler(
      lengths, {.batch_size = 20, .batches_in_pool = 20});
  sampler.begin_pass(1, 0);
  std::int64_t items = 0, padded = 0;
  for (std::int64_t i = 0; i < sampler.size(); ++i) {
    std::int64_t longest = 0;
    const auto batch = sampler.at(i);
    for (const std::int64_t index : batch) {
      items += lengths[static_cast<std::size_t>(index)];
      longest = std::max(longest, lengths[static_cast<std::size_t>(index)]);
    }
    padded += longest * static_cast<std::int64_t>(batch.size());
  }
  EXPECT_LT(static_cast<double>(padded), 1.1 * static_cast<double>(items));
}

}  // namespace samplers_test
}  // namespace accelerate
