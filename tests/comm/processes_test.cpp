#include <atomic>

#include <accelerate/error.h>
#include <accelerate/nested.h>
#include <accelerate/world.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace processes_test {

using testing::expect_error;
using testing::run_on_ranks;

// Ranks 0 and 1 on one node, 2 and 3 on another.
WorldOptions on_two_nodes(WorldOptions options) {
  options.local_rank = *options.rank % 2;
  options.local_size = 2;
  return options;
}

TEST(WorldProcesses, KnowsItsPlaceByTheNamesOfPartialState) {
  run_on_ranks(4, [](const WorldOptions& options) {
    const World world(on_two_nodes(options));
    EXPECT_EQ(world.num_processes(), 4);
    EXPECT_EQ(world.process_index(), *options.rank);
    EXPECT_EQ(world.local_process_index(), *options.rank % 2);
    EXPECT_EQ(world.is_main_process(), *options.rank == 0);
    EXPECT_EQ(world.is_local_main_process(), *options.rank % 2 == 0);
    EXPECT_EQ(world.is_last_process(), *options.rank == 3);
    EXPECT_TRUE(world.use_distributed());
  });
  const World alone;
  EXPECT_TRUE(alone.is_main_process() && alone.is_local_main_process());
  EXPECT_TRUE(alone.is_last_process());
  EXPECT_FALSE(alone.use_distributed());
}

TEST(WorldProcesses, TakesRankAndSizeFromItsOptions) {
  const World alone({.rank = 0, .size = 1});
  EXPECT_EQ(alone.size(), 1);
  expect_error<ConfigError>(
      [] { const World refused({.size = 2}); }, "must set both rank and size");
  expect_error<ConfigError>(
      [] { const World refused({.rank = 2, .size = 2}); }, "rank 2 of 2");
}

TEST(WorldProcesses, RunsFunctionsOnSomeRanksOnly) {
  std::vector<std::string> ran(4);
  run_on_ranks(4, [&](const WorldOptions& options) {
    const World world(on_two_nodes(options));
    std::string& mine = ran[static_cast<std::size_t>(world.rank())];
    world.on_main_process([&] { mine += "main "; });
    world.on_local_main_process([&] { mine += "local "; });
    world.on_last_process([&] { mine += "last "; });
    world.on_process(1, [&] { mine += "one "; });
    world.on_local_process(1, [&] { mine += "second "; });
    world.on_local_process(2, [&] { mine += "none "; });
    expect_error<ConfigError>(
        [&] { world.on_process(4, [] {}); }, "rank 4 of 4");
    expect_error<ConfigError>(
        [&] { world.on_local_process(-1, [] {}); }, "rank -1");
  });
  EXPECT_THAT(
      ran,
      ::testing::ElementsAre(
          "main local ", "one second ", "local ", "last second "));
}

TEST(WorldProcesses, RunsTheFirstRankOfEachNodeFirst) {
  std::atomic<int> order{0};
  std::vector<int> places(4);
  run_on_ranks(4, [&](const WorldOptions& options) {
    const World world(on_two_nodes(options));
    for (int again = 0; again < 2; ++again) {
      world.local_main_process_first(
          [&] { places[static_cast<std::size_t>(world.rank())] = order++; });
    }
  });
  EXPECT_LT(places[0], places[1]);
  EXPECT_LT(places[2], places[3]);
}

TEST(WorldProcesses, LetsNoRankFollowAFirstOneThatFailed) {
  std::vector<std::string> errors(3);
  run_on_ranks(3, [&](const WorldOptions& options) {
    const World world(options);
    try {
      world.main_process_first([&] {
        if (world.is_main_process()) throw 7;
        ADD_FAILURE() << "followed";
      });
    } catch (const DistributedError& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    } catch (int value) {
      errors[static_cast<std::size_t>(world.rank())] = std::to_string(value);
    }
    world.wait_for_everyone();
  });
  EXPECT_EQ(errors[0], "7");
  EXPECT_THAT(errors[1], ::testing::HasSubstr("rank 0 went first and failed"));
  EXPECT_EQ(errors[1], errors[2]);
}

TEST(WorldProcesses, SplitsValuesBetweenProcesses) {
  run_on_ranks(3, [](const WorldOptions& options) {
    const World world(options);
    const std::vector<std::string> prompts{"a", "b", "c", "d"};
    const std::vector<std::vector<std::string>> shares{
        {"a", "b"}, {"c"}, {"d"}};
    EXPECT_EQ(
        world.split_between_processes(prompts),
        shares[static_cast<std::size_t>(world.rank())]);
    EXPECT_EQ(world.split_between_processes(prompts, true).size(), 2);
    EXPECT_EQ(
        world.split_between_processes(torch::arange(4)).size(0),
        world.rank() == 0 ? 2 : 1);
  });
}

TEST(WorldProcesses, PrintsOncePerNode) {
  ::testing::internal::CaptureStdout();
  run_on_ranks(4, [](const WorldOptions& options) {
    const World world(on_two_nodes(options));
    world.print("ready");
    world.wait_for_everyone();
    world.print("{} of {{}}: {}", "a", 1.5);
  });
  EXPECT_EQ(
      ::testing::internal::GetCapturedStdout(),
      "ready\nready\na of {}: 1.5\na of {}: 1.5\n");
}

}  // namespace processes_test
}  // namespace accelerate
