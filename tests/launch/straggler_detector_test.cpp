#include "launch/board/straggler_detector.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

namespace accelerate::detail {
namespace straggler_detector_test {

using std::chrono::seconds;

/// Ranks whose phases take as long as the test says.
class Ranks {
 public:
  explicit Ranks(int count) {
    for (int i = 0; i < count; ++i) {
      RankActivity rank;
      rank.rank = i;
      ranks_.push_back(rank);
      takes(i, RankPhase::data, 100);
      takes(i, RankPhase::forward, 1000);
      takes(i, RankPhase::backward, 2000);
      takes(i, RankPhase::optimizer, 300);
    }
  }

  void takes(int rank, RankPhase phase, std::uint32_t microseconds) {
    ranks_[static_cast<std::size_t>(rank)]
        .median_us[static_cast<std::size_t>(phase)] = microseconds;
  }

  std::optional<StragglerReport> look_after(seconds time, bool steps = true) {
    now_ += time;
    if (steps) {
      for (RankActivity& rank : ranks_) {
        for (std::uint64_t& count : rank.num_timed) ++count;
      }
    }
    return detector_.look(ranks_, now_);
  }

 private:
  StragglerDetector detector_;
  StragglerDetector::Clock::time_point now_{};
  std::vector<RankActivity> ranks_;
};

TEST(StragglerDetector, NamesASlowRankAndThePhaseAfterAMinute) {
  Ranks ranks(4);
  ranks.takes(2, RankPhase::data, 900);
  ranks.takes(2, RankPhase::forward, 1100);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_FALSE(ranks.look_after(seconds(59)));
  const auto report = ranks.look_after(seconds(1));
  ASSERT_TRUE(report);
  EXPECT_EQ(
      describe(*report),
      "rank 2 is slower than the others: its steps take 4.3 ms without "
      "waiting, theirs 3.4 ms; most of it waiting for the data loader: 0.9 ms "
      "and 0.1 ms\n");
  EXPECT_FALSE(ranks.look_after(seconds(100)));
}

TEST(StragglerDetector, IgnoresLessThanAFifth) {
  Ranks ranks(3);
  ranks.takes(0, RankPhase::backward, 2670);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_FALSE(ranks.look_after(seconds(61)));
  ranks.takes(0, RankPhase::backward, 2690);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_TRUE(ranks.look_after(seconds(61)));
}

TEST(StragglerDetector, StartsAnewWhenTheRankWasFastInBetween) {
  Ranks ranks(2);
  ranks.takes(1, RankPhase::forward, 5000);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  ranks.takes(1, RankPhase::forward, 1000);
  EXPECT_FALSE(ranks.look_after(seconds(40)));
  ranks.takes(1, RankPhase::forward, 5000);
  EXPECT_FALSE(ranks.look_after(seconds(40)));
  EXPECT_TRUE(ranks.look_after(seconds(60)));
  ranks.takes(1, RankPhase::forward, 1000);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  ranks.takes(1, RankPhase::forward, 5000);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_TRUE(ranks.look_after(seconds(60)));
}

TEST(StragglerDetector, SaysNothingOfRanksThatDoNotStep) {
  Ranks ranks(2);
  ranks.takes(1, RankPhase::forward, 5000);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_FALSE(ranks.look_after(seconds(100), /*steps=*/false));
  EXPECT_TRUE(ranks.look_after(seconds(1)));
}

TEST(StragglerDetector, NeedsOthersToCompareWith) {
  Ranks ranks(1);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_FALSE(ranks.look_after(seconds(100)));
}

}  // namespace straggler_detector_test
}  // namespace accelerate::detail
