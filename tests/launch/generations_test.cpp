#include "launch/elastic/generations.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "launch/board/rank_activity.h"

namespace accelerate::detail {
namespace generations_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Loss = Generations::Loss;

/// A group whose processes do what the test says. The first process in seat s
/// has the id 100 + s, the next one 200 + s, and so on.
class Group {
 public:
  Group(
      int fewest,
      int most,
      int num_restarts,
      std::chrono::milliseconds patience = std::chrono::hours(1))
      : num_restarts_left_(num_restarts),
        board_(Board::create({.num_pages = most, .world_size = most})),
        generations_(
            board_,
            {.fewest = fewest,
             .most = most,
             .num_restarts_left = &num_restarts_left_,
             .patience = patience}),
        num_processes_(static_cast<std::size_t>(most)) {
    for (int seat = 0; seat < most; ++seat) {
      start(seat);
      arrive(seat, 1);
    }
  }

  void start(int seat) {
    const int process =
        100 * ++num_processes_[static_cast<std::size_t>(seat)] + seat;
    generations_.add(seat, process);
  }
  /// Makes the seat's process ready for a generation.
  void arrive(int seat, std::uint32_t generation) {
    BoardSeat& own = board_.page(seat).seat;
    own.arrived.store(generation);
    own.process.store(
        100 * num_processes_[static_cast<std::size_t>(seat)] + seat);
  }
  void withdraw(int seat) { board_.page(seat).seat.process.store(0); }
  void ask_for(int num_ranks) {
    board_.shared_header().asked_ranks.store(num_ranks);
  }

  /// The rank of each seat.
  [[nodiscard]] std::vector<int> ranks() const {
    std::vector<int> found;
    for (std::size_t seat = 0; seat < num_processes_.size(); ++seat)
      found.push_back(generations_.rank_of(static_cast<int>(seat)));
    return found;
  }
  [[nodiscard]] std::uint32_t target() const {
    return board_.header().target.load();
  }
  [[nodiscard]] std::uint32_t wanted() const {
    return board_.header().wanted.load();
  }
  [[nodiscard]] int num_restarts_left() const { return num_restarts_left_; }
  [[nodiscard]] const Board& board() const { return board_; }
  Generations* operator->() { return &generations_; }

 private:
  int num_restarts_left_;
  Board board_;
  Generations generations_;
  std::vector<int> num_processes_;
};

TEST(Generations, BeginWithAllSeats) {
  Group group(3, 3, 1);
  EXPECT_EQ(group->current(), 1U);
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(group->is_changing());
  EXPECT_FALSE(group->advance());
}

TEST(Generations, BeginWithoutAbsentSeats) {
  int num_restarts_left = 0;
  const Board board = Board::create({.num_pages = 4, .world_size = 4});
  const Generations generations(
      board,
      {.fewest = 1,
       .most = 4,
       .num_restarts_left = &num_restarts_left,
       .absent = {0, 2}});
  EXPECT_EQ(generations.num_ranks(), 2);
  EXPECT_EQ(generations.rank_of(0), -1);
  EXPECT_EQ(generations.rank_of(1), 0);
  EXPECT_EQ(generations.rank_of(2), -1);
  EXPECT_EQ(generations.rank_of(3), 1);
}

// Seats 2 and 3 are on one machine.
TEST(Generations, LoseAMachineWithoutReplacingIt) {
  Group group(2, 4, 1);
  ASSERT_EQ(group->lose_machine(2, 2), Loss::smaller);
  EXPECT_EQ(group.target(), 2U);
  EXPECT_EQ(group.num_restarts_left(), 1);
  // Processes that the machine takes down cost no restart.
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_EQ(group.num_restarts_left(), 1);
  group.start(1);
  group.arrive(0, 2);
  group.arrive(1, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, -1, -1));
  EXPECT_EQ(group->lose_machine(2, 2), Loss::harmless);
}

TEST(Generations, EndWithAMachineWithoutWhichTooFewAreLeft) {
  Group group(3, 4, 1);
  EXPECT_EQ(group->lose_machine(2, 2), Loss::ends_group);
}

TEST(Generations, TakeInAMachineWithAllItsSeats) {
  Group group(1, 4, 0);
  ASSERT_EQ(group->lose_machine(2, 2), Loss::smaller);
  EXPECT_FALSE(group->join(2, 2));
  group.arrive(0, 2);
  group.arrive(1, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_FALSE(group->join(1, 2));
  ASSERT_TRUE(group->join(2, 2));
  for (const int seat : {2, 3}) {
    group.start(seat);
    group.arrive(seat, 3);
  }
  EXPECT_FALSE(group->advance());
  for (const int seat : {0, 1}) group.arrive(seat, 3);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, 2, 3));
}

TEST(Generations, LetAMachineLeaveIfTheOthersAreEnough) {
  using Leave = Generations::Leave;
  Group group(2, 4, 1);
  EXPECT_EQ(group->leave(0, 3), Leave::refused);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_EQ(group->leave(2, 2), Leave::later);
  group.start(1);
  for (int seat = 0; seat < 4; ++seat) group.arrive(seat, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_EQ(group->leave(2, 2), Leave::begun);
  EXPECT_EQ(group.wanted(), 3U);
  EXPECT_EQ(group.target(), 2U);
  for (int seat = 0; seat < 4; ++seat) group.arrive(seat, 3);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, -1, -1));
  group.withdraw(0);
  EXPECT_EQ(group->leave(1, 1), Leave::refused);
}

TEST(Generations, NameTheRanksThatAreLate) {
  Group group(2, 3, 1, std::chrono::milliseconds(-1));
  EXPECT_THAT(group->late(), IsEmpty());
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_THAT(group->late(), ElementsAre(0, 2));
  group.arrive(2, 2);
  EXPECT_THAT(group->late(), ElementsAre(0));
}

TEST(Generations, FollowWhenAllHaveArrived) {
  Group group(3, 3, 1);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_EQ(group.target(), 2U);
  group.start(1);
  group.arrive(0, 2);
  EXPECT_FALSE(group->advance());
  group.arrive(1, 2);
  EXPECT_FALSE(group->advance());
  group.arrive(2, 2);
  EXPECT_TRUE(group->advance());
  EXPECT_EQ(group->current(), 2U);
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(group->is_changing());
  EXPECT_EQ(group.num_restarts_left(), 0);
}

// Only processes that have to leave their generation have a time limit.
TEST(Generations, WaitForProcessesThatTakeLongToStart) {
  Group group(2, 2, 1, std::chrono::milliseconds(-1));
  ASSERT_EQ(group->lose(1), Loss::replaced);
  group.start(1);
  EXPECT_TRUE(group->has_failed());
  group.arrive(0, 2);
  EXPECT_FALSE(group->has_failed());
  group.arrive(1, 2);
  EXPECT_TRUE(group->advance());
  EXPECT_FALSE(group->has_failed());
}

// A rank that was going to leave costs no restart, but one that dies after it
// does.
TEST(Generations, ReplaceARankThatDiesAfterOneLeaves) {
  Group group(1, 3, 1);
  EXPECT_THAT(group->resize(2), ::testing::IsEmpty());
  EXPECT_EQ(group->lose(2), Loss::smaller);
  EXPECT_EQ(group.num_restarts_left(), 1);
  EXPECT_EQ(group->lose(1), Loss::replaced);
  EXPECT_EQ(group.num_restarts_left(), 0);
}

TEST(Generations, ShowNothingOfTheOneBefore) {
  Group group(2, 2, 1);
  group.board().page(1).has_ended.store(1);
  group.board().page(1).num_steps.store(12);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  // Other ranks can still ask for the reason.
  EXPECT_TRUE(read_activity(group.board(), 1).wait_status.has_value());
  group.start(1);
  group.arrive(0, 2);
  group.arrive(1, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_FALSE(read_activity(group.board(), 1).wait_status.has_value());
  EXPECT_EQ(read_activity(group.board(), 1).num_steps, 0U);
}

TEST(Generations, CostOneRestartForAllThatEndsTogether) {
  Group group(3, 3, 1);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  ASSERT_EQ(group->lose(2), Loss::replaced);
  EXPECT_EQ(group.num_restarts_left(), 0);
}

TEST(Generations, CostAnotherRestartIfAReplacementEnds) {
  Group group(2, 2, 2);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  group.start(1);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_EQ(group.num_restarts_left(), 0);
  group.start(1);
  EXPECT_EQ(group->lose(1), Loss::ends_group);
}

TEST(Generations, NeedProcessesThatHaveAnnouncedThemselves) {
  Group group(2, 3, 5);
  group.withdraw(0);
  EXPECT_EQ(group->lose(1), Loss::ends_group);
  EXPECT_EQ(group.num_restarts_left(), 5);
}

TEST(Generations, NeedThatNoRankHasFinished) {
  Group group(2, 3, 5);
  EXPECT_FALSE(group->finish(0));
  EXPECT_EQ(group->lose(1), Loss::ends_group);
}

TEST(Generations, FailIfARankFinishesInsteadOfArriving) {
  Group group(2, 2, 1);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_FALSE(group->has_failed());
  group->finish(0);
  EXPECT_TRUE(group->has_failed());
}

TEST(Generations, AreSmallerWhereNoRestartIsLeft) {
  Group group(2, 3, 0);
  ASSERT_EQ(group->lose(0), Loss::smaller);
  group.arrive(1, 2);
  group.arrive(2, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(-1, 0, 1));
  EXPECT_EQ(group->num_ranks(), 2);
  EXPECT_EQ(read_activities(group.board()).size(), 2U);
  EXPECT_EQ(group->lose(1), Loss::ends_group);
}

TEST(Generations, GrowWhenTheJoiningRankIsReady) {
  Group group(1, 3, 0);
  ASSERT_EQ(group->lose(1), Loss::smaller);
  group.arrive(0, 2);
  group.arrive(2, 2);
  ASSERT_TRUE(group->advance());
  group.ask_for(3);
  ASSERT_EQ(group->take_request(), 3);
  EXPECT_THAT(group->resize(3), ElementsAre(1));
  group.start(1);
  EXPECT_FALSE(group->advance());
  EXPECT_EQ(group.wanted(), 2U);
  group.arrive(1, 3);
  EXPECT_FALSE(group->advance());
  // No rank has to leave before the end of a step.
  EXPECT_EQ(group.wanted(), 3U);
  EXPECT_EQ(group.target(), 2U);
  group.arrive(0, 3);
  group.arrive(2, 3);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, 2));
}

TEST(Generations, StayIfTheJoiningRankEnds) {
  Group group(1, 2, 0);
  ASSERT_EQ(group->lose(1), Loss::smaller);
  group.arrive(0, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group->resize(2), ElementsAre(1));
  group.start(1);
  EXPECT_EQ(group->lose(1), Loss::harmless);
  EXPECT_FALSE(group->is_changing());
  EXPECT_EQ(group.target(), 2U);
}

TEST(Generations, NeedTheJoiningRankIfTooFewAreLeft) {
  Group group(2, 3, 0);
  ASSERT_EQ(group->lose(1), Loss::smaller);
  group.arrive(0, 2);
  group.arrive(2, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group->resize(3), ElementsAre(1));
  group.start(1);
  ASSERT_EQ(group->lose(0), Loss::smaller);
  EXPECT_EQ(group->lose(1), Loss::ends_group);
}

TEST(Generations, ShrinkAtTheEndOfAStep) {
  Group group(1, 3, 0);
  group.ask_for(1);
  ASSERT_EQ(group->take_request(), 1);
  EXPECT_THAT(group->resize(1), IsEmpty());
  EXPECT_EQ(group.wanted(), 2U);
  EXPECT_EQ(group.target(), 1U);
  for (int seat = 0; seat < 3; ++seat) group.arrive(seat, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(0, -1, -1));
  // Their seats become free only when they end, in their own time.
  group.ask_for(3);
  EXPECT_EQ(group->take_request(), 0);
  group->finish(1);
  EXPECT_EQ(group->lose(2), Loss::harmless);
  EXPECT_FALSE(group->is_changing());
  EXPECT_EQ(group->take_request(), 3);
}

TEST(Generations, AreBrokenByADeathBeforeTheEndOfTheStep) {
  Group group(1, 3, 1);
  group->resize(2);
  group.arrive(0, 2);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  EXPECT_EQ(group.target(), 2U);
  group.start(1);
  group.arrive(1, 2);
  group.arrive(2, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_THAT(group.ranks(), ElementsAre(0, 1, -1));
}

TEST(Generations, TakeNoRequestThatCannotBeGranted) {
  Group group(2, 3, 1);
  group.ask_for(4);
  EXPECT_EQ(group->take_request(), 0);
  group.ask_for(3);
  EXPECT_EQ(group->take_request(), 0);
  ASSERT_EQ(group->lose(1), Loss::replaced);
  group.ask_for(2);
  // The request waits until the change for the other reason is complete.
  EXPECT_EQ(group->take_request(), 0);
  group.start(1);
  for (int seat = 0; seat < 3; ++seat) group.arrive(seat, 2);
  ASSERT_TRUE(group->advance());
  EXPECT_EQ(group->take_request(), 2);
}

}  // namespace generations_test
}  // namespace accelerate::detail
