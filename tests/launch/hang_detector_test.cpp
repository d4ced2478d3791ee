#include "launch/board/hang_detector.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

namespace accelerate::detail {
namespace hang_detector_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = HangReport::Kind;

/// Ranks of one machine, with a clock that the test advances.
class Ranks {
 public:
  explicit Ranks(int count) {
    for (int i = 0; i < count; ++i) {
      ObservedRank rank;
      rank.activity.rank = i;
      rank.activity.process = 100 + i;
      rank.activity.state = BoardPageState::running;
      rank.activity.phase = RankPhase::between;
      GroupCall call;
      call.group = "world";
      call.has_ended = true;
      rank.activity.calls.push_back(call);
      rank.process_state = 'S';
      ranks_.push_back(rank);
    }
  }

  ObservedRank& operator[](int rank) {
    return ranks_[static_cast<std::size_t>(rank)];
  }

  void begins(int rank, const std::string& operation = "all_reduce") {
    GroupCall& call = (*this)[rank].activity.calls[0];
    ++call.number;
    call.operation = operation;
    call.has_ended = false;
  }
  void ends(int rank) { (*this)[rank].activity.calls[0].has_ended = true; }
  void enters(int rank, RankPhase phase) {
    (*this)[rank].activity.phase = phase;
    ++(*this)[rank].activity.num_phases;
  }
  void awaits(int rank, const std::string& what, std::vector<int> peers) {
    PeerWait wait;
    wait.number = ++num_waits_;
    wait.what = what;
    wait.peers = std::move(peers);
    (*this)[rank].activity.waits = {wait};
  }

  std::optional<HangReport> look_after(milliseconds time) {
    now_ += time;
    return detector_.look(ranks_, now_);
  }

 private:
  HangDetector detector_{seconds(10)};
  HangDetector::Clock::time_point now_{};
  std::vector<ObservedRank> ranks_;
  std::uint64_t num_waits_ = 0;
};

std::vector<int> blocking(const HangReport& report) {
  std::vector<int> ranks;
  for (const BlockingRank& rank : report.blocking) ranks.push_back(rank.rank);
  return ranks;
}

std::vector<int> waiting(const HangReport& report) {
  std::vector<int> ranks;
  for (const WaitingRank& rank : report.waiting) ranks.push_back(rank.rank);
  return ranks;
}

TEST(HangDetector, NamesTheRankThatDidNotArrive) {
  Ranks ranks(3);
  ranks.enters(2, RankPhase::forward);
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  ranks.begins(0);
  ranks.begins(1);
  EXPECT_FALSE(ranks.look_after(seconds(5)));
  EXPECT_FALSE(ranks.look_after(seconds(9)));
  const auto report = ranks.look_after(seconds(1));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::late);
  EXPECT_THAT(blocking(*report), ElementsAre(2));
  EXPECT_THAT(waiting(*report), ElementsAre(0, 1));
  EXPECT_EQ(report->blocking[0].phase, RankPhase::forward);
  EXPECT_EQ(report->blocking[0].time, seconds(15));
  EXPECT_EQ(report->waiting[0].time, seconds(10));
  EXPECT_EQ(
      describe(*report, "hang: "),
      "hang: ranks 0 and 1 have waited 10 s for rank 2\n"
      "    rank 2 (process 102): in forward for 15 s, step 0; no collective "
      "yet; its process sleeps\n"
      "    rank 0 waits in all_reduce number 1 of group \"world\" (10 s)\n"
      "    rank 1 waits in all_reduce number 1 of group \"world\" (10 s)\n");
}

TEST(HangDetector, ReportsEachSituationOnce) {
  Ranks ranks(2);
  ranks.begins(0);
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  EXPECT_TRUE(ranks.look_after(seconds(10)));
  EXPECT_FALSE(ranks.look_after(seconds(10)));
  ranks.enters(1, RankPhase::data);
  EXPECT_TRUE(ranks.look_after(seconds(1)));
  ranks.begins(1);
  EXPECT_FALSE(
      ranks.look_after(milliseconds(1)) && ranks.look_after(milliseconds(1)));
  ranks.ends(0);
  ranks.ends(1);
  EXPECT_FALSE(ranks.look_after(seconds(20)));
  ranks.begins(0);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_TRUE(ranks.look_after(seconds(10)));
}

TEST(HangDetector, IsSilentWhileCallsGoOn) {
  Ranks ranks(2);
  for (int i = 0; i < 100; ++i) {
    ranks.begins(0);
    EXPECT_FALSE(ranks.look_after(seconds(4)));
    ranks.begins(1);
    EXPECT_FALSE(ranks.look_after(seconds(5)));
    ranks.ends(0);
    ranks.ends(1);
    EXPECT_FALSE(ranks.look_after(seconds(30)));
  }
}

TEST(HangDetector, NamesARankThatIsStoppedInsideTheCall) {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) ranks.begins(rank);
  ranks[1].process_state = 'T';
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  const auto report = ranks.look_after(seconds(10));
  ASSERT_TRUE(report);
  EXPECT_THAT(blocking(*report), ElementsAre(1));
  EXPECT_THAT(waiting(*report), ElementsAre(0, 2));
  EXPECT_THAT(describe(*report, ""), HasSubstr("is stopped (SIGSTOP"));
}

TEST(HangDetector, FollowsWaitsToTheirCause) {
  // Rank 0 waits in a collective for 1, which waits for a message from 2.
  Ranks ranks(3);
  ranks.begins(0);
  ranks.awaits(1, "shards of layer 3", {2});
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  const auto report = ranks.look_after(seconds(11));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::late);
  EXPECT_THAT(blocking(*report), ElementsAre(2));
  EXPECT_THAT(describe(*report, ""), HasSubstr("waits in shards of layer 3"));
}

TEST(HangDetector, FindsRanksThatWaitForEachOther) {
  Ranks ranks(2);
  ranks.awaits(0, "a message", {1});
  ranks.awaits(1, "another message", {0});
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  const auto report = ranks.look_after(seconds(10));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::cycle);
  EXPECT_THAT(report->blocking, IsEmpty());
  EXPECT_THAT(
      describe(*report, ""), HasSubstr("ranks 0 and 1 wait for each other"));
}

TEST(HangDetector, SaysThatNoRankHereIsMissing) {
  Ranks ranks(2);
  ranks.begins(0);
  ranks.begins(1);
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  const auto report = ranks.look_after(seconds(10));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::elsewhere);
  EXPECT_THAT(
      describe(*report, ""),
      HasSubstr("ranks 0 and 1 have waited 10 s, but not for a rank of this "
                "machine"));
}

TEST(HangDetector, GivesACallItsTimeOnceAllHaveArrived) {
  Ranks ranks(2);
  ranks.begins(0);
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  EXPECT_FALSE(ranks.look_after(seconds(9)));
  ranks.begins(1);
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_FALSE(ranks.look_after(seconds(9)));
  const auto report = ranks.look_after(seconds(1));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::elsewhere);
}

TEST(HangDetector, GivesTimeToRanksThatSeemToWaitForEachOther) {
  Ranks ranks(2);
  ranks.awaits(0, "making a group", {0, 1});
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  EXPECT_FALSE(ranks.look_after(seconds(9)));
  ranks.awaits(1, "making a group", {0, 1});
  EXPECT_FALSE(ranks.look_after(seconds(1)));
  EXPECT_FALSE(ranks.look_after(seconds(9)));
  const auto report = ranks.look_after(seconds(1));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::cycle);
}

TEST(HangDetector, LeavesOutRanksThatHaveWaitedBriefly) {
  Ranks ranks(5);
  ranks.awaits(0, "a message", {1});
  // Rank 1, which holds up rank 0, itself waits for rank 2.
  ranks.awaits(1, "shards of layer 3", {2});
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  EXPECT_FALSE(ranks.look_after(seconds(9)));
  ranks.awaits(3, "another message", {4});
  const auto report = ranks.look_after(seconds(1));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::late);
  EXPECT_THAT(blocking(*report), ElementsAre(2));
  EXPECT_THAT(waiting(*report), ElementsAre(0, 1));
}

TEST(HangDetector, ReportsDifferentCallsAtOnce) {
  Ranks ranks(3);
  ranks.begins(0, "all_reduce");
  ranks.begins(2, "all_gather");
  const auto report = ranks.look_after(seconds(0));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::disagreement);
  ASSERT_EQ(report->calls.size(), 2U);
  EXPECT_EQ(
      describe(*report, ""),
      "the ranks of a group made different calls\n"
      "    rank 0: all_reduce number 1 of group \"world\"\n"
      "    rank 2: all_gather number 1 of group \"world\"\n");
  EXPECT_FALSE(ranks.look_after(seconds(1)));
}

TEST(HangDetector, ComparesShapesDtypesAndRoots) {
  const auto differs = [](auto change) {
    Ranks ranks(2);
    ranks.begins(0);
    ranks.begins(1);
    for (int rank = 0; rank < 2; ++rank) {
      GroupCall& call = ranks[rank].activity.calls[0];
      call.dtype = "Float";
      call.shape = {2, 3};
      call.num_dims = 2;
    }
    change(ranks[1].activity.calls[0]);
    return ranks.look_after(seconds(0)).has_value();
  };
  EXPECT_FALSE(differs([](GroupCall&) {}));
  EXPECT_FALSE(differs([](GroupCall& call) { call.place = "a.cpp:1"; }));
  EXPECT_TRUE(differs([](GroupCall& call) { call.dtype = "Half"; }));
  EXPECT_TRUE(differs([](GroupCall& call) { call.shape = {3, 2}; }));
  EXPECT_TRUE(differs([](GroupCall& call) { call.num_dims = 3; }));
  EXPECT_TRUE(differs([](GroupCall& call) { call.root = 1; }));
}

TEST(HangDetector, NamesARankThatHasNotJoinedYet) {
  Ranks ranks(2);
  ranks[1].activity.state = BoardPageState::empty;
  ranks[1].activity.process = 0;
  ranks[1].activity.calls.clear();
  ranks.awaits(0, "making a group", {0, 1});
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  const auto report = ranks.look_after(seconds(10));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::late);
  EXPECT_THAT(describe(*report, ""), HasSubstr("rank 1 has not joined yet"));
}

TEST(HangDetector, DoesNotBlameRanksThatAwaitAnotherMachine) {
  Ranks ranks(2);
  ranks.awaits(0, "making a group", {0, 1, 2});
  ranks.awaits(1, "making a group", {0, 1, 2});
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  const auto report = ranks.look_after(seconds(10));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Kind::elsewhere);
}

TEST(HangDetector, IgnoresRanksThatHaveEnded) {
  Ranks ranks(2);
  ranks.begins(0);
  ranks[0].activity.wait_status = 9;
  EXPECT_FALSE(ranks.look_after(seconds(0)));
  EXPECT_FALSE(ranks.look_after(seconds(20)));
}

}  // namespace hang_detector_test
}  // namespace accelerate::detail
