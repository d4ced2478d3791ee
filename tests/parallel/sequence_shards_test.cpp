#include <accelerate/sequence_shards.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace sequence_shards_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;

TEST(SequenceShards, ZigzagGivesEachRankAChunkOfBothEnds) {
  const SequenceShards shards(12, 3);
  EXPECT_THAT(shards.positions(0), ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(shards.positions(1), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(shards.positions(2), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(
      shards.restore(), ElementsAre(0, 1, 4, 5, 8, 9, 10, 11, 6, 7, 2, 3));
  EXPECT_THAT(
      shards.ranges(0), ElementsAre(PositionRange{0, 2}, PositionRange{10, 2}));
  EXPECT_THAT(shards.ranges(2), ElementsAre(PositionRange{4, 4}));
}

TEST(SequenceShards, ContiguousGivesEachRankOneChunk) {
  const SequenceShards shards(6, 3, SequenceCut::contiguous);
  EXPECT_THAT(shards.positions(1), ElementsAre(2, 3));
  EXPECT_THAT(shards.restore(), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(SequenceShards, PadTheEnd) {
  const SequenceShards zigzag(5, 2);
  EXPECT_EQ(zigzag.length(), 5);
  EXPECT_EQ(zigzag.padded_length(), 8);
  EXPECT_THAT(zigzag.positions(0), ElementsAre(0, 1, 6, 7));
  EXPECT_EQ(SequenceShards(5, 2, SequenceCut::contiguous).padded_length(), 6);
  // A single rank does not divide the sequence, so it does not pad it.
  EXPECT_EQ(SequenceShards(5, 1).padded_length(), 5);
  EXPECT_THAT(SequenceShards(0, 4).positions(3), IsEmpty());
}

TEST(SequenceShards, RefuseInvalidSequences) {
  expect_error<ConfigError>([] { SequenceShards(-1, 2); }, "at least 0");
  expect_error<ConfigError>([] { SequenceShards(8, 0); }, "at least 1 rank");
}

TEST(SequenceShards, DivideAllPositionsOnceAndRestoreThem) {
  EXPECT_TRUE(rc::check([] {
    const auto length = *rc::gen::inRange<std::int64_t>(0, 200);
    const int ranks = *rc::gen::inRange(1, 9);
    const auto cut =
        *rc::gen::element(SequenceCut::contiguous, SequenceCut::zigzag);
    const SequenceShards shards(length, ranks, cut);
    std::vector<std::int64_t> joined;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = shards.positions(rank);
      RC_ASSERT(std::is_sorted(own.begin(), own.end()));
      RC_ASSERT(static_cast<std::int64_t>(own.size()) == shards.local_length());
      joined.insert(joined.end(), own.begin(), own.end());
    }
    const auto restore = shards.restore();
    RC_ASSERT(restore.size() == joined.size());
    for (std::size_t i = 0; i < restore.size(); ++i) {
      RC_ASSERT(
          joined[static_cast<std::size_t>(restore[i])] ==
          static_cast<std::int64_t>(i));
    }
    RC_ASSERT(shards.padded_length() >= length);
    RC_ASSERT(shards.padded_length() - length < 2 * ranks);
  }));
}

// The number of pairs that causal attention computes differs by at most the
// square of one chunk.
TEST(SequenceShards, ZigzagBalancesCausalAttention) {
  EXPECT_TRUE(rc::check([] {
    const int ranks = *rc::gen::inRange(1, 9);
    const auto chunk = *rc::gen::inRange<std::int64_t>(1, 20);
    const SequenceShards shards(2 * ranks * chunk, ranks);
    std::set<std::int64_t> work;
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t pairs = 0;
      for (const std::int64_t position : shards.positions(rank))
        pairs += position + 1;
      work.insert(pairs);
    }
    RC_ASSERT(work.size() == 1U);
  }));
}

}  // namespace sequence_shards_test
}  // namespace accelerate
