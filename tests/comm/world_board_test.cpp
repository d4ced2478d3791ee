#include "comm/monitoring/world_board.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "base/text/text.h"
#include "comm/collectives/run_collective.h"
#include "comm/group/group_impl.h"
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

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
    return "none";
  } catch (const DistributedError& error) {
    return error.what();
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

// Although something of the rank's still refers to the board, as an accelerator
// does that a peer sees ending.
TEST(WorldBoard, ShowsThatARankHasGoneBeforeItsPeersLoseTheConnection) {
  std::latch failures(2);
  run_on_ranks(3, [&](const WorldOptions& options) {
    std::optional<World> world(options);
    world->group().all_reduce(at::ones({4}));
    if (world->rank() == 1) {
      const auto board = world->group().impl()->world->board;
      world.reset();
      failures.wait();
      return;
    }
    EXPECT_THAT(
        error_of([&] { world->group().barrier(); }),
        AllOf(
            HasSubstr("rank 1 (process "),
            HasSubstr("has ended or closed the connection (an exception"),
            HasSubstr("its last call: all_reduce (Float [4]) number 1")));
    failures.count_down();
  });
}

// A smaller group loses its connection first, and its ranks ask each other.
TEST(WorldBoard, ShowsThatARankHasGoneWhileItsPeersAskForIt) {
  run_on_ranks(2, [&](const WorldOptions& options) {
    const World world(options);
    std::optional<Group> pair = world.new_group({0, 1});
    const std::string asks = format("failed/{}/1/0", pair->impl()->name);
    if (world.rank() == 1) {
      pair.reset();
      static_cast<void>(world.store().get(asks));
      return;
    }
    EXPECT_THAT(
        error_of([&] { pair->barrier(); }),
        AllOf(
            HasSubstr("rank 1 (process "),
            HasSubstr("has ended or closed the connection (an exception")));
  });
}

TEST(WorldBoard, ListsEachCallOfADisagreementOnce) {
  run_on_ranks(2, [](const WorldOptions& options) {
    const World world(options);
    const std::string error = error_of([&] {
      if (world.rank() == 0) {
        world.group().all_reduce(at::ones({4}));
      } else {
        world.group().broadcast(at::ones({4}), 0);
      }
    });
    for (const char* const words :
         {"all_reduce (Float [4])", "broadcast (Fl"}) {
      const std::size_t first = error.find(words);
      EXPECT_NE(first, std::string::npos) << error;
      EXPECT_EQ(error.find(words, first + 1), std::string::npos) << error;
    }
  });
}

// Ranks on different machines have boards of their own.
TEST(WorldBoard, IsToldToOtherMachinesAfterATimeout) {
  run_on_ranks(2, [&](WorldOptions options) {
    options.local_rank = 0;
    options.local_size = 1;
    options.transport = "gloo";
    options.own_transport = nullptr;
    options.timeout = std::chrono::seconds(3);
    const World world(options);
    EXPECT_THAT(
        error_of([&] {
          if (world.rank() == 0) {
            world.group().barrier();
          } else {
            static_cast<void>(world.group().all_gather(at::ones({4})));
          }
        }),
        AllOf(
            HasSubstr("the ranks made different calls\n  rank 0: barrier "
                      "number 1 of group \"world\" at world_board_test.cpp:"),
            HasSubstr("\n  rank 1: all_gather (Float [4]) number 1 of group "
                      "\"world\" at world_board_test.cpp:")));
  });
}

// A tensor of the size that travels before bytes.
TEST(WorldBoard, ShowsThatATensorWasSentInPlaceOfBytes) {
  for (const bool broadcasts : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& options) {
      const World world(options);
      const Group& group = world.group();
      const at::Tensor tensor = at::full({2}, std::int64_t{1} << 60, at::kLong);
      EXPECT_THAT(
          error_of([&] {
            if (broadcasts && world.rank() == 0) {
              group.broadcast(tensor, 0);
            } else if (broadcasts) {
              static_cast<void>(group.broadcast_bytes("", 0));
            } else if (world.rank() == 0) {
              static_cast<void>(group.all_gather(tensor));
            } else {
              static_cast<void>(group.all_gather_bytes("text"));
            }
            group.barrier();
          }),
          AllOf(
              HasSubstr("made different calls"),
              HasSubstr(broadcasts ? "broadcast_bytes" : "all_gather_bytes")));
    });
  }
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
        "all_reduce number 1 of group \"world\" failed on rank 1: its own "
        "exception: disk is full");
  });
}

// A collective that fails after later ones have begun; a message has no number.
TEST(WorldBoard, ShowsTheNumberOfTheCallThatFailed) {
  run_on_ranks(2, [](const WorldOptions& options) {
    const World world(options);
    const auto fail = [] { throw std::runtime_error("disk is full"); };
    expect_error<DistributedError>(
        [&] {
          run_collective(
              *world.group().impl(), {"all_reduce", {}}, std::string(), [&] {
                world.group().barrier();
                fail();
              });
        },
        "all_reduce number 1 of group \"world\" failed on rank");
    expect_error<DistributedError>(
        [&] { run_message(*world.group().impl(), "send", 0, fail); },
        "[comm] send of group \"world\" failed on rank");
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
      [] { World({.rank = 0, .size = 1, .hang_seconds = -1.0}); }, "but is -1");
  expect_error<ConfigError>(
      [] { World({.rank = 0, .size = 1, .on_hang = "shout"}); },
      "must be warn, stacks or kill");
}

}  // namespace world_board_test
}  // namespace accelerate::detail
