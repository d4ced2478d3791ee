#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace launch_fault_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::ToolResult;

ToolResult launch(int count, const std::string& what) {
  return run_tool(
      {"launch", "--num_processes", std::to_string(count), FAULT_RANK, what});
}

TEST(Fault, IsPrintedLastAndEndsAllRanks) {
  const ToolResult result = launch(3, "throw");
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(result.err.ends_with("    the user's own mistake\n"))
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 2 (process"));
}

TEST(Fault, NamesTheSignalThatKilledARank) {
  const ToolResult result = launch(2, "kill");
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process"));
  EXPECT_THAT(result.err, HasSubstr("was killed by SIGKILL"));
}

TEST(Fault, NamesARankThatExitsEarly) {
  const ToolResult result = launch(2, "leave");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
}

TEST(Fault, NamesARankThatExitsWhileParametersAreGathered) {
  const ToolResult result = launch(3, "gather");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("gathering the parameters of layers.1"),
          HasSubstr("rank 2")));
}

TEST(Fault, NamesARankThatExitsWhileGradientsAreReduced) {
  const ToolResult result = launch(3, "reduce");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(
      result.err,
      AllOf(
          // Either a large parameter's gradient, or the rest of a unit's
          // gradients.
          HasSubstr("reducing the gradient"),
          HasSubstr(" of layers."),
          HasSubstr("rank 2")));
}

TEST(Fault, NamesARankThatExitsWhileLayersOrSequencesAreShared) {
  for (const char* const traffic :
       {"tensor", "slices", "allgather", "alltoall", "heads"}) {
    for (const char* const phase : {"forward", "backward"}) {
      SCOPED_TRACE(std::string(traffic) + " " + phase);
      const ToolResult result = run_tool(
          {"launch", "--num_processes", "3", AXES_FAULT_RANK, traffic, phase});
      EXPECT_EQ(result.code, 3);
      EXPECT_THAT(result.err, HasSubstr("rank 2"));
    }
  }
}

TEST(Fault, NamesARankThatRunsOutOfMemory) {
  const ToolResult result = launch(3, "memory");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("rank 2 (process"), HasSubstr("can't allocate memory")));
}

TEST(Fault, InAShardedSaveLosesNoCheckpoint) {
  const testing::TemporaryDirectory directory;
  const auto with_directory = [&](const std::string& count,
                                  const std::string& what) {
    return run_tool(
        {"launch",
         "--num_processes",
         count,
         FAULT_RANK,
         what,
         directory.path().string()});
  };
  const ToolResult result = with_directory("3", "save");
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("rank 2"), HasSubstr("was killed by SIGKILL")));
  EXPECT_FALSE(std::filesystem::exists(directory / "second"));
  EXPECT_EQ(with_directory("2", "load").code, 0);
}

TEST(Fault, NamesASilentRankAfterTheTimeout) {
  const ToolResult result = launch(2, "silent");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
}

std::vector<std::string> lines_with(
    const std::string& text,
    const std::string& words) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find(words);
    if (begin != std::string::npos) found.push_back(line.substr(begin));
  }
  return found;
}

TEST(Preemption, LetsAllRanksSaveAfterTheSameStep) {
  const testing::TemporaryDirectory directory;
  testing::Tool tool(
      {"launch",
       "--num_processes",
       "3",
       FAULT_RANK,
       "preempt",
       directory.path().string()});
  while (tool.read_line().find("ready") == std::string::npos) {
  }
  ::kill(tool.pid(), SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  const auto left = lines_with(result.out, "left after step ");
  ASSERT_EQ(left.size(), 3U) << result.out << result.err;
  EXPECT_EQ(left[0], left[1]);
  EXPECT_EQ(left[0], left[2]);
  EXPECT_TRUE(std::filesystem::exists(directory / "state/manifest.json"));
}

// A scheduler, for instance, may tell only one of the ranks.
TEST(Preemption, OfOneRankAppliesToAll) {
  const testing::TemporaryDirectory directory;
  testing::Tool tool(
      {"launch",
       "--num_processes",
       "2",
       "sh",
       "-c",
       "if [ $RANK = 1 ]; then echo $$; fi; exec \"$0\" preempt \"$1\"",
       FAULT_RANK,
       directory.path().string()});
  pid_t process = 0;
  for (std::string line; line.find("ready") == std::string::npos;) {
    line = tool.read_line();
    if (line.starts_with("[1] ")) process = std::stoi(line.substr(4));
  }
  ASSERT_GT(process, 0);
  ::kill(process, SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(lines_with(result.out, "left after step ").size(), 2U);
}

TEST(Preemption, EndsRanksThatStayAfterTheGracePeriod) {
  testing::Tool tool(
      {"launch",
       "--num_processes",
       "2",
       "--grace_seconds",
       "0.2",
       FAULT_RANK,
       "ignore_end"});
  while (tool.read_line().find("ready") == std::string::npos) {
  }
  ::kill(tool.pid(), SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_THAT(result.err, Not(HasSubstr("SIGKILL")));
}

TEST(Fault, ExplainsWrongDegrees) {
  const ToolResult result = launch(2, "shard");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(
      result.err, HasSubstr("shard (3) = 3 ranks, but the launcher started 2"));
}

TEST(Fault, NamesTheSampleThatCannotBeRead) {
  const ToolResult result = launch(2, "torn_data");
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(result.err.ends_with(
      "    [data] sample 5: get() failed: the file is torn\n"))
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process"));
}

TEST(LogLevel, OfTheLauncherAppliesToRanks) {
  const ToolResult usual = launch(2, "untracked");
  EXPECT_EQ(usual.code, 0);
  EXPECT_THAT(usual.err, HasSubstr("[0] [accelerate rank 0] warning"));
  EXPECT_THAT(usual.err, HasSubstr("tensors of no prepared model"));
  const ToolResult quiet = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "--log_level",
       "error",
       FAULT_RANK,
       "untracked"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.err, "");
}

// Programs that use plain c10d sometimes abort at exit.
TEST(CleanExit, HoldsForManyProgramsThatSimplyEnd) {
  constexpr int kAtOnce = 4;
  constexpr int kRounds = 25;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<testing::Tool>> tools;
    for (int i = 0; i < kAtOnce; ++i) {
      tools.push_back(std::make_unique<testing::Tool>(std::vector<std::string>{
          "launch", "--num_processes", "2", FAULT_RANK, "clean"}));
    }
    for (const auto& tool : tools) {
      const ToolResult result = tool->wait();
      EXPECT_EQ(result.code, 0);
      EXPECT_EQ(result.err, "");
    }
  }
}

}  // namespace launch_fault_test
}  // namespace accelerate
