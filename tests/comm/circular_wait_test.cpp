#include "comm/monitoring/circular_wait.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "base/text/text.h"
#include "laws/check.h"

namespace accelerate::detail {
namespace circular_wait_test {

using testing::expect_law;
using Ranks = std::vector<RankActivity>;

// What a rank does in a group: the number of its newest call, and whether its
// program is blocked in it.
struct In {
  std::string group;
  std::uint64_t number = 0;
  bool is_blocked = false;
  std::string operation = "barrier";
  int root = -1;
};

RankActivity rank_in(int rank, const std::vector<In>& groups) {
  RankActivity activity;
  activity.rank = rank;
  activity.state = BoardPageState::running;
  for (const In& in : groups) {
    GroupCall call;
    call.group = in.group;
    call.number = in.number;
    call.operation = in.operation;
    call.root = in.root;
    call.blocks_program = in.is_blocked;
    call.has_ended = !in.is_blocked;
    activity.calls.push_back(std::move(call));
  }
  return activity;
}

// Rank 0 waits in the store for rank 1.
std::string chain_of(const Ranks& ranks) {
  std::string text;
  for (const auto& [rank, call] : find_circular_wait(ranks, 0, 1))
    text += format("{}:{}{} ", rank, call.group, call.number);
  return text;
}

TEST(CircularWait, NeedsARankThatIsBlockedByThisOne) {
  const RankActivity own = rank_in(0, {{"world", 4}});
  EXPECT_EQ(chain_of({own, rank_in(1, {{"world", 5, true}})}), "1:world5 ");
  // This rank has made the call: the other one is about to go on.
  EXPECT_EQ(
      chain_of({rank_in(0, {{"world", 5}}), rank_in(1, {{"world", 5, true}})}),
      "");
  // It computes, or is in a call that has ended.
  EXPECT_EQ(chain_of({own, rank_in(1, {{"world", 5, false}})}), "");
  // This rank is not in the group, or the other is not on this machine.
  EXPECT_EQ(chain_of({own, rank_in(1, {{"pair", 1, true}})}), "");
  EXPECT_EQ(chain_of({own}), "");
}

TEST(CircularWait, NeedsTheProgramsThreadAndARunningRank) {
  const RankActivity own = rank_in(0, {{"world", 4}});
  RankActivity other = rank_in(1, {{"world", 5, true}});
  other.calls[0].blocks_program = false;  // another thread, or the background
  EXPECT_EQ(chain_of({own, other}), "");
  other.calls[0].blocks_program = true;
  other.state = BoardPageState::failed;
  EXPECT_EQ(chain_of({own, other}), "");
  other.state = BoardPageState::running;
  other.wait_status = 0;
  EXPECT_EQ(chain_of({own, other}), "");
}

TEST(CircularWait, KnowsWhichRanksACallNeeds) {
  const auto other = [](const char* operation, int root) {
    return chain_of(
        {rank_in(0, {{"world", 4}}),
         rank_in(1, {{"world", 5, true, operation, root}})});
  };
  for (const char* const operation : {"broadcast", "scatter"}) {
    EXPECT_EQ(other(operation, 0), "1:world5 ");
    EXPECT_EQ(other(operation, 1), "");
    EXPECT_EQ(other(operation, 2), "");
  }
  for (const char* const operation : {"reduce", "gather"}) {
    EXPECT_EQ(other(operation, 0), "");
    EXPECT_EQ(other(operation, 1), "1:world5 ");
  }
  EXPECT_EQ(other("all_reduce", -1), "1:world5 ");
}

TEST(CircularWait, PassesThroughOtherRanks) {
  const RankActivity own = rank_in(0, {{"b", 2}});
  const RankActivity first = rank_in(1, {{"a", 3, true}});
  EXPECT_EQ(
      chain_of({own, first, rank_in(2, {{"a", 2}, {"b", 3, true}})}),
      "1:a3 2:b3 ");
  // Rank 2 computes, and will make the call.
  EXPECT_EQ(chain_of({own, first, rank_in(2, {{"a", 2}, {"b", 3}})}), "");
  // A circle without this rank.
  EXPECT_EQ(
      chain_of(
          {own,
           rank_in(1, {{"a", 3, true}, {"c", 1}}),
           rank_in(2, {{"a", 2}, {"c", 2, true}})}),
      "");
}

TEST(CircularWait, IsTheSameInTheSameCalls) {
  const auto wait = [](std::uint64_t number) {
    return find_circular_wait(
        {rank_in(0, {{"world", 1}}), rank_in(1, {{"world", number, true}})},
        0,
        1);
  };
  EXPECT_TRUE(is_same_wait(wait(2), wait(2)));
  EXPECT_FALSE(is_same_wait(wait(2), wait(3)));
  EXPECT_FALSE(is_same_wait({}, wait(3)));
}

TEST(CircularWait, IsDescribedWithAllCallsSideBySide) {
  EXPECT_EQ(
      describe_circular_wait(
          {{1, rank_in(1, {{"world", 5, true}}).calls[0]}}, 0, "save_state"),
      "[comm] ranks 0 and 1 wait for each other, because they made different "
      "calls; all ranks must make the same:\n  rank 0: save_state\n  rank 1: "
      "barrier number 5 of group \"world\"");
}

// Ranks that make the same calls in the same order, stopped anywhere: the rank
// that is behind in the order always goes on, so there is no circle.
TEST(CircularWaitLaw, IsNeverSeenInAProgramWhoseRanksMakeTheSameCalls) {
  expect_law(2'000, [] {
    const int num_ranks = *rc::gen::inRange(2, 5);
    // Calls are of the groups 0 .. 2; 3 is one of the store, in which each rank
    // waits for all others.
    const auto program = *rc::gen::container<std::vector<int>>(
        8,
        rc::gen::weightedOneOf<int>(
            {{4, rc::gen::inRange(0, 3)}, {1, rc::gen::just(3)}}));
    std::vector<std::vector<bool>> is_member(
        3, std::vector<bool>(static_cast<std::size_t>(num_ranks), true));
    for (std::size_t group = 1; group < 3; ++group) {
      for (std::size_t rank = 0; rank < is_member[group].size(); ++rank)
        is_member[group][rank] = *rc::gen::arbitrary<bool>();
    }
    // How many calls each rank has ended: no further than the others allow.
    std::vector<std::size_t> done(static_cast<std::size_t>(num_ranks), 0);
    const auto takes_part = [&](std::size_t rank, int group) {
      return group == 3 || is_member[static_cast<std::size_t>(group)][rank];
    };
    const auto can_end = [&](std::size_t rank) {
      const int group = program[done[rank]];
      for (std::size_t other = 0; other < done.size(); ++other) {
        if (takes_part(rank, group) && takes_part(other, group) &&
            done[other] < done[rank])
          return false;
      }
      return true;
    };
    const int num_moves = *rc::gen::inRange(0, 40);
    for (int i = 0; i < num_moves; ++i) {
      const auto rank =
          static_cast<std::size_t>(*rc::gen::inRange(0, num_ranks));
      if (done[rank] < program.size() && can_end(rank)) ++done[rank];
    }
    Ranks ranks;
    for (std::size_t rank = 0; rank < done.size(); ++rank) {
      std::vector<In> groups;
      for (int group = 0; group < 3; ++group) {
        if (!takes_part(rank, group)) continue;
        In in{std::to_string(group)};
        for (std::size_t call = 0; call < done[rank]; ++call)
          in.number += program[call] == group ? 1 : 0;
        const bool is_next =
            done[rank] < program.size() && program[done[rank]] == group;
        // It may not have begun its next call yet.
        if (is_next && *rc::gen::arbitrary<bool>()) {
          ++in.number;
          in.is_blocked = true;
        }
        groups.push_back(in);
      }
      ranks.push_back(rank_in(static_cast<int>(rank), groups));
    }
    for (std::size_t own = 0; own < done.size(); ++own) {
      if (done[own] == program.size() || program[done[own]] != 3) continue;
      for (std::size_t other = 0; other < done.size(); ++other) {
        // It waits for ranks that have not written their value.
        if (other == own || done[other] >= done[own]) continue;
        RC_ASSERT(find_circular_wait(
                      ranks, static_cast<int>(own), static_cast<int>(other))
                      .empty());
      }
    }
  });
}

}  // namespace circular_wait_test
}  // namespace accelerate::detail
