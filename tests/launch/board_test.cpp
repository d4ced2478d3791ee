#include "launch/board/board.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text/text.h"
#include "launch/board/board_writer.h"
#include "launch/board/rank_activity.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace board_test {

using accelerate::testing::expect_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// A board, and a writer of its first page that was opened with the board's
/// ticket.
struct WrittenBoard {
  Board board = Board::create(
      {.num_pages = 3, .first_rank = 4, .world_size = 8, .command = "train"});
  BoardWriter writer{Board::open(board.ticket()), 0, 4};

  [[nodiscard]] RankActivity read() const { return read_activity(board, 0); }
};

TEST(Board, SaysWhatIsRunning) {
  const Board board = Board::create(
      {.num_pages = 2,
       .first_rank = 2,
       .world_size = 4,
       .attempt = 1,
       .machine = 1,
       .command = "train --lr 1"});
  const Board opened = Board::open(board.ticket());
  EXPECT_EQ(opened.num_pages(), 2);
  EXPECT_EQ(opened.header().first_rank, 2);
  EXPECT_EQ(opened.header().world_size, 4);
  EXPECT_EQ(opened.header().attempt, 1);
  EXPECT_EQ(opened.header().machine, 1);
  EXPECT_EQ(opened.header().supervisor, getpid());
  EXPECT_EQ(text_of(opened.header().command), "train --lr 1");
  ASSERT_THAT(read_activities(opened), SizeIs(2));
  EXPECT_EQ(read_activities(opened)[1].rank, 3);
  EXPECT_EQ(read_activities(opened)[1].state, BoardPageState::empty);
}

TEST(Board, SaysHowItsRanksEnded) {
  WrittenBoard board;
  BoardPage& page = board.board.page(0);
  EXPECT_EQ(board.read().ending, "");
  // The monitor kills this process, which another launcher supervises.
  page.killed_for_hang.store(getpid() + 1);
  EXPECT_EQ(board.read().ending, "");
  page.killed_for_hang.store(getpid());
  EXPECT_EQ(
      board.read().ending,
      "was ended because it held up the others (--on_hang kill)");
  set_text(page.ending, "exited with code 3");
  page.has_ended.store(1);
  EXPECT_EQ(board.read().ending, "exited with code 3");
  // The next process in its place.
  board.board.clear_page(0);
  EXPECT_EQ(board.read().ending, "");
}

// Without ignoring SIGXFSZ, which belongs to the program.
TEST(SharedSegment, IsRefusedAboveTheLimitOfFileSizes) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto make = [] { SharedSegment::create(200'000, "limited"); };
  expect_error<SegmentError>(make, "200000 bytes were refused: File too large");
  expect_error<SegmentError>(
      make, "\"ulimit -f\" limits shared memory as well");
  SharedSegment::create(50'000, "small");
  ::setrlimit(RLIMIT_FSIZE, &before);
  sigset_t pending, blocked;
  ::sigpending(&pending);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
  EXPECT_EQ(sigismember(&blocked, SIGXFSZ), 0);
}

TEST(Board, IsFoundByItsProcess) {
  const Board board = Board::create({.command = "found by its process"});
  std::vector<std::string> commands;
  for (const Board& each : Board::of_process(getpid()))
    commands.push_back(text_of(each.header().command));
  EXPECT_THAT(commands, ::testing::Contains("found by its process"));
  EXPECT_THAT(Board::of_process(-1), IsEmpty());
}

TEST(Board, RefusesOtherSegments) {
  const SharedSegment other = SharedSegment::create(1 << 20);
  expect_error<SegmentError>(
      [&] { static_cast<void>(Board::open(other.ticket())); },
      "another version");
  const SharedSegment small = SharedSegment::create(100);
  expect_error<SegmentError>(
      [&] { static_cast<void>(Board::open(small.ticket())); },
      "another version");
}

TEST(BoardReports, AreReadAsTheyCome) {
  const Board board = Board::create({});
  board.add_report("before");
  BoardReports reports(board);
  EXPECT_THAT(reports.news(), IsEmpty());
  board.add_report("one");
  board.add_report("two");
  EXPECT_THAT(reports.news(), ElementsAre("one", "two"));
  EXPECT_THAT(reports.news(), IsEmpty());
  for (int i = 0; i < 6; ++i) board.add_report(std::to_string(i));
  EXPECT_THAT(reports.news(), ElementsAre("2", "3", "4", "5"));
  const std::string text(10'000, 'x');
  board.add_report(text);
  EXPECT_EQ(reports.news().front(), text.substr(0, 2999));
}

TEST(BoardWriter, NotesCollectives) {
  WrittenBoard board;
  BoardLaneWriter* const world = board.writer.add_lane("world");
  ASSERT_NE(world, nullptr);
  EXPECT_EQ(board.writer.add_lane("world"), world);
  EXPECT_EQ(board.read().calls.front().number, 0U);
  EXPECT_TRUE(board.read().calls.front().has_ended);

  const std::vector<std::int64_t> shape{2, 0, 3};
  const std::uint64_t first = world->begin(
      {.operation = "broadcast",
       .dtype = "Float",
       .shape = shape,
       .root = 5,
       .place = {.file = "/src/comm/group.cpp", .line = 12}});
  EXPECT_EQ(first, 1U);
  RankActivity rank = board.read();
  EXPECT_EQ(rank.rank, 4);
  EXPECT_EQ(rank.process, getpid());
  EXPECT_EQ(rank.state, BoardPageState::running);
  ASSERT_THAT(rank.calls, SizeIs(1));
  EXPECT_FALSE(rank.calls[0].has_ended);
  EXPECT_EQ(rank.calls[0].root, 5);
  EXPECT_THAT(rank.calls[0].shape, ElementsAre(2, 0, 3));
  EXPECT_EQ(
      describe(rank.calls[0]),
      "broadcast (Float [2, 0, 3]) with root 5 number 1 of group \"world\" at "
      "group.cpp:12");

  world->end(first);
  EXPECT_TRUE(board.read().calls[0].has_ended);
  const std::uint64_t second = world->begin({.operation = "barrier"});
  EXPECT_EQ(second, 2U);
  rank = board.read();
  EXPECT_FALSE(rank.calls[0].has_ended);
  EXPECT_EQ(describe(rank.calls[0]), "barrier number 2 of group \"world\"");
}

TEST(BoardWriter, ShortensShapes) {
  WrittenBoard board;
  const std::vector<std::int64_t> shape{1, 2, 3, 4, 5};
  board.writer.add_lane("g")->begin(
      {.operation = "all_reduce", .dtype = "Int", .shape = shape});
  EXPECT_EQ(
      describe(board.read().calls[0]),
      "all_reduce (Int [1, 2, 3, 4, ...]) number 1 of group \"g\"");
}

TEST(BoardWriter, EndsEarlierCallsWithLaterOnes) {
  WrittenBoard board;
  BoardLaneWriter* const lane = board.writer.add_lane("g");
  const std::uint64_t first = lane->begin({.operation = "all_reduce"});
  const std::uint64_t second = lane->begin({.operation = "all_reduce"});
  lane->end(first);
  EXPECT_FALSE(board.read().calls[0].has_ended);
  lane->end(second);
  lane->end(first);
  EXPECT_TRUE(board.read().calls[0].has_ended);
}

TEST(BoardWriter, NotesPhasesStepsAndTheirDurations) {
  WrittenBoard board;
  EXPECT_EQ(board.read().phase, RankPhase::starting);
  {
    const BoardPhaseScope forward(&board.writer, RankPhase::forward);
    EXPECT_EQ(board.read().phase, RankPhase::forward);
    {
      const BoardPhaseScope save(&board.writer, RankPhase::checkpoint);
      EXPECT_EQ(board.read().phase, RankPhase::checkpoint);
    }
    EXPECT_EQ(board.read().phase, RankPhase::forward);
  }
  EXPECT_EQ(board.read().phase, RankPhase::between);
  EXPECT_EQ(board.read().num_phases, 4U);
  board.writer.set_num_steps(1);
  EXPECT_EQ(board.read().num_steps, 1U);
  for (const std::uint32_t each : {5U, 1U, 9U, 2U, 7U})
    board.writer.note_duration(RankPhase::forward, each);
  const auto forward = static_cast<std::size_t>(RankPhase::forward);
  EXPECT_EQ(board.read().median_us[forward], 5U);
  EXPECT_EQ(board.read().num_timed[forward], 5U);
  for (int i = 0; i < 100; ++i)
    board.writer.note_duration(RankPhase::forward, 40);
  EXPECT_EQ(board.read().median_us[forward], 40U);
}

TEST(BoardWriter, NotesWaitsForPeers) {
  WrittenBoard board;
  const std::vector<int> peers{0, 7, 3, 1, 2};
  {
    const BoardWaitScope outer(&board.writer, "saving", std::vector<int>{6});
    const BoardWaitScope inner(&board.writer, "shards", peers);
    const RankActivity rank = board.read();
    ASSERT_THAT(rank.waits, SizeIs(2));
    EXPECT_EQ(rank.waits[0].what, "saving");
    EXPECT_THAT(rank.waits[0].peers, ElementsAre(6));
    EXPECT_EQ(rank.waits[1].what, "shards");
    EXPECT_EQ(rank.waits[1].peers, peers);
  }
  EXPECT_THAT(board.read().waits, IsEmpty());
  const BoardWaitScope again(&board.writer, "saving", std::vector<int>{});
  EXPECT_EQ(board.read().waits.front().number, 2U);
}

TEST(BoardWriter, KeepsFirstLanesAndTextsWhenThePageIsFull) {
  WrittenBoard board;
  for (std::size_t i = 0; i < BoardPage::kMostLanes; ++i)
    EXPECT_NE(board.writer.add_lane(format("group {}", i)), nullptr);
  EXPECT_EQ(board.writer.add_lane("one more"), nullptr);
  BoardLaneWriter* const lane = board.writer.add_lane("group 0");
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back(format("operation {}", i));
  for (const std::string& name : names)
    lane->begin({.operation = name.c_str()});
  const RankActivity rank = board.read();
  EXPECT_EQ(rank.calls[0].number, 300U);
  EXPECT_EQ(rank.calls[0].operation, "");
  const std::vector<int> peers(100, 1);
  std::vector<std::unique_ptr<BoardWaitScope>> waits;
  for (int i = 0; i < 6; ++i) {
    waits.push_back(
        std::make_unique<BoardWaitScope>(&board.writer, "operation 0", peers));
  }
  EXPECT_THAT(board.read().waits, SizeIs(std::size_t{BoardPage::kMostWaits}));
  EXPECT_THAT(
      board.read().waits[0].peers, SizeIs(std::size_t{BoardWait::kMostPeers}));
}

TEST(BoardWriter, SaysHowTheRankEnded) {
  const Board board = Board::create({.num_pages = 2});
  {
    BoardWriter first(Board::open(board.ticket()), 0, 0);
    BoardWriter second(Board::open(board.ticket()), 1, 1);
    second.fail("[comm] rank 0 is gone");
    second.fail("a consequence");
  }
  EXPECT_EQ(read_activity(board, 0).state, BoardPageState::finished);
  EXPECT_EQ(read_activity(board, 1).state, BoardPageState::failed);
  EXPECT_EQ(read_activity(board, 1).failure, "[comm] rank 0 is gone");
}

TEST(BoardWriter, IsNotFinishedByAForkedChild) {
  WrittenBoard board;
  const pid_t child = fork();
  if (child == 0) {
    board.writer.~BoardWriter();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(board.read().state, BoardPageState::running);
}

TEST(BoardWriter, IsReadWhileSeveralThreadsWrite) {
  WrittenBoard board;
  BoardLaneWriter* const lane = board.writer.add_lane("g");
  std::atomic<bool> stops{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (std::int64_t i = 1; !stops; ++i) {
        const std::vector<std::int64_t> shape{i, i + 1, i + 2};
        lane->end(lane->begin(
            {.operation = "all_reduce", .dtype = "Float", .shape = shape}));
        const BoardWaitScope wait(
            &board.writer, "shards", std::vector<int>{1, 2, 3});
      }
    });
  }
  int num_read = 0;
  while (num_read < 2000) {
    const RankActivity rank = board.read();
    ASSERT_THAT(rank.calls, SizeIs(1));
    const GroupCall& call = rank.calls[0];
    if (call.number == 0) continue;
    ++num_read;
    ASSERT_EQ(call.operation, "all_reduce");
    ASSERT_EQ(call.dtype, "Float");
    ASSERT_THAT(call.shape, SizeIs(3));
    ASSERT_EQ(call.shape[1], call.shape[0] + 1);
    ASSERT_EQ(call.shape[2], call.shape[0] + 2);
    for (const PeerWait& wait : rank.waits)
      ASSERT_THAT(wait.peers, ElementsAre(1, 2, 3));
  }
  stops = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace board_test
}  // namespace accelerate::detail
