#include "cli/launch/machine/processor_sets.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::cli {
namespace processor_sets_test {

using ::testing::ElementsAre;
using testing::expect_error;

// Two packages of `cores` cores with two threads each. As in Linux, the first
// thread of every core is numbered before any second thread.
std::vector<Processor> machine(int cores) {
  std::vector<Processor> out;
  for (int thread = 0; thread < 2; ++thread) {
    for (int package = 0; package < 2; ++package) {
      for (int core = 0; core < cores; ++core) {
        const int number = thread * 2 * cores + package * cores + core;
        out.push_back({number, package, core});
      }
    }
  }
  return out;
}

TEST(ShareProcessors, KeepsHyperthreadsAndPackagesTogether) {
  EXPECT_THAT(
      share_processors(machine(2), 2),
      ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
  EXPECT_THAT(
      share_processors(machine(2), 4),
      ElementsAre(
          ElementsAre(0, 4),
          ElementsAre(1, 5),
          ElementsAre(2, 6),
          ElementsAre(3, 7)));
}

TEST(ShareProcessors, SplitsCoresIfThereAreTooFew) {
  const auto sets = share_processors(machine(1), 4);
  EXPECT_THAT(
      sets,
      ElementsAre(
          ElementsAre(0), ElementsAre(2), ElementsAre(1), ElementsAre(3)));
}

TEST(ShareProcessors, GivesNothingToMoreRanksThanProcessors) {
  EXPECT_TRUE(share_processors(machine(1), 5).empty());
}

TEST(ShareProcessors, SharesAllProcessorsEqually) {
  EXPECT_TRUE(rc::check([] {
    const int cores = *rc::gen::inRange(1, 20);
    const int ranks = *rc::gen::inRange(1, 4 * cores + 1);
    const auto sets = share_processors(machine(cores), ranks);
    RC_ASSERT(sets.size() == static_cast<std::size_t>(ranks));
    std::set<int> all;
    std::size_t total = 0, least = 1000, most = 0;
    for (const auto& set : sets) {
      all.insert(set.begin(), set.end());
      total += set.size();
      least = std::min(least, set.size());
      most = std::max(most, set.size());
    }
    RC_ASSERT(all.size() == total);
    RC_ASSERT(total == static_cast<std::size_t>(4 * cores));
    RC_ASSERT(least > 0u);
    RC_ASSERT(most - least <= 2u);
  }));
}

TEST(ParseProcessors, ReadsASetForEachRank) {
  const std::vector<int> allowed{0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_THAT(
      parse_processors("0-3,8;4-5", 2, allowed),
      ElementsAre(ElementsAre(0, 1, 2, 3, 8), ElementsAre(4, 5)));
  expect_error<ConfigError>(
      [&] { parse_processors("0-3", 2, allowed); },
      "is for 1 ranks, but 2 start");
  expect_error<ConfigError>(
      [&] { parse_processors("0;9", 2, allowed); },
      "names processor 9, but this process may use 0-8");
  expect_error<ConfigError>(
      [&] { parse_processors("3-1;0", 2, allowed); }, "has \"3-1\"");
}

TEST(FormatProcessors, WritesRuns) {
  EXPECT_EQ(format_processors({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(format_processors({}), "");
}

}  // namespace processor_sets_test
}  // namespace accelerate::cli
