#include "data/order/permutation.h"

#include <rapidcheck.h>

namespace accelerate::detail {
namespace permutation_test {

std::vector<std::int64_t> order_of(const Permutation& permutation) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < permutation.size(); ++i)
    order.push_back(permutation(i));
  return order;
}

TEST(Permutation, HasEveryValueOnce) {
  EXPECT_TRUE(rc::check([] {
    const auto size = *rc::gen::inRange<std::int64_t>(0, 3000);
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    const auto epoch = *rc::gen::inRange<std::uint64_t>(0, 100);
    std::vector<bool> seen(static_cast<std::size_t>(size), false);
    for (const std::int64_t value : order_of(Permutation(size, seed, epoch))) {
      RC_ASSERT(value >= 0 && value < size);
      RC_ASSERT(!seen[static_cast<std::size_t>(value)]);
      seen[static_cast<std::size_t>(value)] = true;
    }
  }));
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  const auto first = order_of(Permutation(1000, 1, 0));
  EXPECT_EQ(first, order_of(Permutation(1000, 1, 0)));
  EXPECT_NE(first, order_of(Permutation(1000, 1, 1)));
  EXPECT_NE(first, order_of(Permutation(1000, 2, 0)));
}

TEST(Permutation, SpreadsEachPositionOverAllValues) {
  // 6 values over 6,000 seeds: each expected 1,000 times, standard deviation 29.
  for (std::int64_t position = 0; position < 6; ++position) {
    std::vector<int> counts(6, 0);
    for (std::uint64_t seed = 0; seed < 6000; ++seed) {
      ++counts[static_cast<std::size_t>(Permutation(6, seed, 0)(position))];
    }
    for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
  }
}

TEST(Permutation, WorksAtTheLargestSizes) {
  const std::int64_t size = std::int64_t{1} << 40;
  const Permutation permutation(size, 7, 3);
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{12345}, size - 1}) {
    const std::int64_t value = permutation(position);
    EXPECT_GE(value, 0);
    EXPECT_LT(value, size);
  }
}

}  // namespace permutation_test
}  // namespace accelerate::detail
