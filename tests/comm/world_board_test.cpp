#include "comm/monitoring/world_board.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "comm/collectives/group_impl.h"
#include "comm/collectives/run_collective.h"
#include "launch/board/rank_activity.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace world_board_test {

using accelerate::testing::expect_error;
using accelerate::testing::run_on_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Collects messages of several ranks, and can wait for one of them.
class Messages {
 public:
  Logger logger() {
    return Logger(
        [this](const LogRecord& record) {
          const std::lock_guard lock(mutex_);
          text_ += std::string(record.message) + "\n";
          added_.notify_all();
        },
        LogLevel::warning);
  }
  std::string wait_for(const std::string& words) {
    std::unique_lock lock(mutex_);
    added_.wait_for(lock, std::chrono::seconds(60), [&] {
      return text_.find(words) != std::string::npos;
    });
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::string text_;
};

// Reads again while a rank is storing a call: on a busy machine it may stay
// descheduled meanwhile.
std::vector<RankActivity> read_complete(const Board& board) {
  while (true) {
    std::vector<RankActivity> ranks = read_activities(board);
    const bool is_complete =
        std::all_of(ranks.begin(), ranks.end(), [](const RankActivity& rank) {
          return std::all_of(
              rank.calls.begin(), rank.calls.end(), [](const GroupCall& call) {
                return call.number > 0;
              });
        });
    if (is_complete) return ranks;
    std::this_thread::yield();
  }
}

TEST(WorldBoard, NotesTheCallsOfEachGroup) {
  run_on_ranks(3, [](const WorldOptions& options) {
    const World world(options);
    const WorldBoard* const board = world.group().impl()->world->board.get();
    ASSERT_NE(board, nullptr);
    world.group().all_reduce(at::ones({2, 3}));
    const Group pair = world.new_group({0, 1, 2});
    pair.broadcast(at::ones({5}, at::kLong), 2);
    pair.barrier();
    world.group().barrier();
    for (const RankActivity& rank : read_complete(board->board())) {
      ASSERT_EQ(rank.calls.size(), 2U);
      EXPECT_EQ(rank.calls[0].group, "world");
      // Another rank may already be in the next barrier.
      EXPECT_THAT(rank.calls[0].number, ::testing::AnyOf(2U, 3U));
      EXPECT_EQ(rank.calls[0].operation, "barrier");
      EXPECT_THAT(rank.calls[0].place, HasSubstr("world_board_test.cpp:"));
      EXPECT_EQ(rank.calls[1].number, 2U);
    }
    world.group().barrier();
  });
}

// Also in calls that c10d makes for a replicated model.
TEST(WorldBoard, NotesRootsAsRanksOfTheWorld) {
  run_on_ranks(3, [](const WorldOptions& options) {
    const World world(options);
    if (world.rank() > 0) {
      const Group pair = world.new_group({1, 2});
      std::vector<at::Tensor> tensors{at::ones({5})};
      pair.impl()->process_group->broadcast(tensors, {.rootRank = 1})->wait();
      const WorldBoard& board = *pair.impl()->world->board;
      const RankActivity own = read_activity(board.board(), world.rank());
      ASSERT_EQ(own.calls.size(), 2U);
      EXPECT_EQ(own.calls[1].operation, "broadcast");
      EXPECT_EQ(own.calls[1].root, 2);
    }
    world.group().barrier();
  });
}

TEST(WorldBoard, ReportsRanksThatHang) {
  Messages messages;
  run_on_ranks(2, [&](WorldOptions options) {
    options.hang_seconds = 0.3;
    options.on_hang = "warn";
    options.logger = messages.logger();
    const World world(options);
    if (world.rank() == 1) {
      EXPECT_THAT(
          messages.wait_for("for rank 1"),
          AllOf(
              HasSubstr("rank 0 has waited"),
              HasSubstr("rank 0 waits in all_reduce (Float [4]) number 1")));
    }
    world.group().all_reduce(at::ones({4}));
  });
}

// Only the launcher knows how a process ended; a thread shows no more than this.
TEST(WorldBoard, ShowsThatAnExceptionDestroyedTheWorldOfARank) {
  run_on_ranks(3, [](const WorldOptions& options) {
    const World world(options);
    if (world.rank() == 1) return;
    expect_error<DistributedError>(
        [&] { world.group().barrier(); }, "ended or closed the connection");
  });
}

// The others learn the reason, too, instead of taking it for a disagreement.
TEST(WorldBoard, ShowsAnExceptionOfOneRankInsideACollective) {
  run_on_ranks(2, [](const WorldOptions& options) {
    const World world(options);
    expect_error<DistributedError>(
        [&] {
          run_collective(
              *world.group().impl(), {"all_reduce", {}}, std::string(), [&] {
                if (world.rank() == 1) throw std::runtime_error("disk is full");
                world.group().impl()->connection->barrier()->wait();
              });
        },
        "all_reduce number 1 of group \"world\" failed on rank 1: an exception "
        "of its own: disk is full");
  });
}

TEST(WorldBoard, NotesWhichCallsBlockTheProgram) {
  run_on_ranks(2, [](const WorldOptions& options) {
    const World world(options);
    const WorldBoard& board = *world.group().impl()->world->board;
    const auto blocks = [&] {
      return read_activity(board.board(), world.rank())
          .calls.at(0)
          .blocks_program;
    };
    world.wait_for_everyone();
    EXPECT_TRUE(blocks());
    EXPECT_EQ(
        read_activity(board.board(), world.rank()).calls.at(0).place,
        "wait_for_everyone()");
    std::thread([&] { world.wait_for_everyone(); }).join();
    EXPECT_FALSE(blocks());
  });
}

TEST(WorldBoard, IsNotMadeForASingleRank) {
  EXPECT_EQ(
      World({.rank = 0, .size = 1}).group().impl()->world->board, nullptr);
}

TEST(WorldOptions, RefuseTimesAndActionsThatDoNotExist) {
  expect_error<ConfigError>(
      [] { World({.rank = 0, .size = 1, .hang_seconds = -1.0}); },
      "hang_seconds is -1");
  expect_error<ConfigError>(
      [] { World({.rank = 0, .size = 1, .on_hang = "shout"}); },
      "write warn, stacks or kill");
}

}  // namespace world_board_test
}  // namespace accelerate::detail
