#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <unistd.h>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace hang_test {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;
using testing::Tool;
using testing::ToolResult;

/// Three ranks, the last of which hangs.
struct Hang {
  std::string phase;
  std::string way;
  /// What the report says about its phase.
  std::string words;
};

/// A launch that hangs. Several run at once, since each mostly waits.
class HangingLaunch {
 public:
  HangingLaunch(
      const Hang& hang,
      std::vector<std::string> flags,
      const std::string& code = "") {
    std::vector<std::string> arguments{
        "launch", "--num_processes", "3", "--hang_seconds", "3"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(
        arguments.end(),
        {HANG_RANK, hang.phase, hang.way, directory_.path().string(), code});
    tool_ = std::make_unique<Tool>(arguments);
  }

  ToolResult wait() { return tool_->wait(); }
  [[nodiscard]] pid_t process() const { return tool_->pid(); }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Tool> tool_;
};

bool can_take_stacks() {
  return ::access("/usr/bin/eu-stack", X_OK) == 0 ||
      ::access("/usr/bin/gdb", X_OK) == 0;
}

void expect_named(const std::vector<Hang>& hangs) {
  std::vector<std::unique_ptr<HangingLaunch>> launches;
  for (const Hang& hang : hangs) {
    launches.push_back(std::make_unique<HangingLaunch>(
        hang, std::vector<std::string>{"--on_hang", "kill"}));
  }
  for (std::size_t i = 0; i < hangs.size(); ++i) {
    SCOPED_TRACE(hangs[i].phase + " " + hangs[i].way);
    const ToolResult result = launches[i]->wait();
    EXPECT_EQ(result.code, 128 + SIGKILL);
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr(" for rank 2\n"),
            HasSubstr("    rank 2 (process "),
            HasSubstr("): " + hangs[i].words + " for "),
            HasSubstr("is ended, because it holds up the others"),
            HasSubstr("rank 2 was ended because it held up the others "
                      "(--on_hang kill)"),
            Not(HasSubstr("out of memory")),
            HasSubstr("    rank 0 waits in "),
            HasSubstr("    rank 1 waits in ")));
    if (hangs[i].way == "stopped") {
      EXPECT_THAT(result.err, HasSubstr("its process is stopped"));
    }
    if (can_take_stacks()) {
      EXPECT_THAT(
          result.err,
          AllOf(
              HasSubstr("rank 2:\n"),
              HasSubstr("hang_in_the_programs_own_code")));
    }
  }
}

TEST(Hang, IsNamedInEachPhase) {
  expect_named(
      {{"data", "stopped", "waiting for the data loader"},
       {"forward", "stopped", "in forward"},
       {"backward", "stopped", "in backward"}});
  expect_named(
      {{"optimizer", "stopped", "in the optimizer"},
       {"checkpoint", "stopped", "saving or loading"},
       {"between", "stopped", "between calls of the library"}});
}

TEST(Hang, IsNamedWhateverItsCause) {
  expect_named(
      {{"forward", "loop", "in forward"},
       {"backward", "lock", "in backward"},
       {"checkpoint", "file", "saving or loading"}});
}

TEST(Hang, OverSocketsIsNamed) {
  HangingLaunch launch(
      {"forward", "stopped", ""}, {"--transport", "gloo", "--on_hang", "kill"});
  const ToolResult result = launch.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr(" for rank 2\n"),
          HasSubstr("in forward"),
          HasSubstr("was ended because it held up the others"),
          Not(HasSubstr("out of memory"))));
}

TEST(Hang, IsOnlyReportedUnlessItIsToBeKilled) {
  HangingLaunch launch(
      {"forward", "stopped", ""},
      {"--timeout_seconds", "8", "--on_hang", "warn"});
  const ToolResult result = launch.wait();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr(" for rank 2\n"),
          HasSubstr("did not arrive: in forward, step 2"),
          Not(HasSubstr("hang_in_the_programs_own_code"))));
}

TEST(Hang, IsTreatedAsTheProgramsCodeSays) {
  HangingLaunch launch(
      {"forward", "stopped", ""},
      {"--hang_seconds", "0", "--on_hang", "warn"},
      "kill");
  const ToolResult result = launch.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr(" for rank 2\n"), Not(HasSubstr("out of memory"))));
}

TEST(Hang, IsNotReportedWhereNobodyAskedForIt) {
  HangingLaunch launch(
      {"forward", "stopped", ""},
      {"--timeout_seconds", "5", "--hang_seconds", "0"});
  const ToolResult result = launch.wait();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Not(HasSubstr(" for rank 2\n")));
}

// What `ps` prints about a group once it matches `state`, or after a long time.
std::string listing_with(
    pid_t process,
    const ::testing::Matcher<std::string>& state) {
  const std::string heading = "process " + std::to_string(process) + ": ";
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(100);
  std::string listing;
  while (std::chrono::steady_clock::now() < deadline) {
    listing = testing::run_tool({"ps", "--seconds", "0.1"}).out;
    const std::size_t begin = listing.find(heading);
    if (begin != std::string::npos) {
      listing.erase(0, begin);
      const std::size_t next = listing.find("\nprocess ");
      if (next != std::string::npos) listing.erase(next + 1);
      if (state.Matches(listing)) return listing;
    }
  }
  return listing;
}

TEST(RunningGroups, AreListedWithWhatTheirRanksDo) {
  HangingLaunch launch({"forward", "lock", ""}, {"--hang_seconds", "0"});
  // Ranks reach this state one after another.
  const ::testing::Matcher<std::string> state = AllOf(
      HasSubstr("hang_rank forward lock"),
      HasSubstr("  3 ranks\n"),
      ContainsRegex("\n  0 [^\n]*in backward[^\n]*all_reduce"),
      ContainsRegex("\n  1 [^\n]*in backward[^\n]*all_reduce"),
      ContainsRegex("\n  2 [^\n]*in forward"),
      HasSubstr("all_reduce (Float [20]) number "));
  EXPECT_THAT(listing_with(launch.process(), state), state);
  if (can_take_stacks()) {
    const ToolResult stacks =
        testing::run_tool({"stacks", std::to_string(launch.process())});
    EXPECT_EQ(stacks.code, 0);
    EXPECT_THAT(
        stacks.out,
        AllOf(
            HasSubstr("rank 0 (in backward); rank 1 (in backward):\n"),
            HasSubstr("rank 2 (in forward):\n"),
            HasSubstr("hang_in_the_programs_own_code")));
  }
  ::kill(launch.process(), SIGTERM);
  EXPECT_EQ(launch.wait().code, 128 + SIGTERM);
}

TEST(RunningGroups, AreNamedWhereAnotherIsAskedFor) {
  const ToolResult result = testing::run_tool({"stacks", "1"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err, HasSubstr("process 1 is neither the launcher nor a rank"));
}

TEST(Disagreement, ShowsTheCallsOfAllRanks) {
  for (const char* const transport : {"shared_memory", "gloo"}) {
    SCOPED_TRACE(transport);
    HangingLaunch different(
        {"different", "", ""},
        {"--transport", transport, "--timeout_seconds", "20"});
    HangingLaunch extra(
        {"extra", "", ""},
        {"--transport", transport, "--timeout_seconds", "20"});
    const ToolResult calls = different.wait();
    EXPECT_EQ(calls.code, 3);
    EXPECT_THAT(
        calls.err,
        AllOf(
            HasSubstr("rank 0: all_reduce (Float [4]) number "),
            HasSubstr("rank 2: broadcast (Float [4]) with root 0 number "),
            HasSubstr("at hang_rank.cpp:")));
    const ToolResult one_more = extra.wait();
    EXPECT_EQ(one_more.code, 3);
    EXPECT_THAT(
        one_more.err, HasSubstr("rank 2: all_reduce (Float [3]) number "));
  }
}

}  // namespace hang_test
}  // namespace accelerate
