// Ranks that make different calls: each kind that waits for values in the store
// beside each kind that waits for messages. Nothing here is timed: ranks that
// are not told wait for a timeout of 100 s, whose error names no calls.
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace mixed_calls_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

// Calls that wait for messages, and how they are named.
const std::map<std::string, std::string>& message_calls() {
  static const std::map<std::string, std::string> calls{
      // The first one begins with the order of gradients.
      {"backward", "all_reduce (Long [2]) number "},
      {"broadcast_object", "broadcast_bytes with root 0 number "},
      {"end_training", "barrier number "},
      {"gather", "all_gather (Long [1]) number "},
      {"gather_object", "all_gather_bytes number "},
      {"wait_for_everyone", "barrier number "}};
  return calls;
}

std::string words_of(const std::string& call) {
  const auto found = message_calls().find(call);
  return found == message_calls().end() ? call : found->second;
}

// The errors of both ranks for each pair.
std::map<std::string, std::vector<std::string>> errors_of(
    const std::string& mode,
    const std::vector<std::string>& pairs) {
  const TemporaryDirectory directory;
  std::string command = std::string(MIXED_CALLS_RANK) + " " + mode + " " +
      directory.path().string();
  for (const std::string& pair : pairs) command += " " + pair;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen((command + " 2>/dev/null").c_str(), "r"), ::pclose);
  std::string text;
  std::array<char, 4096> block{};
  while (const std::size_t count =
             std::fread(block.data(), 1, block.size(), pipe.get()))
    text.append(block.data(), count);
  std::map<std::string, std::vector<std::string>> errors;
  std::istringstream lines(text);
  std::string pair;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("== ")) {
      pair = line.substr(3, line.rfind(' ') - 3);
      errors[pair].emplace_back();
    } else if (!pair.empty()) {
      errors[pair].back() += line + "\n";
    }
  }
  return errors;
}

std::vector<std::string> pairs_with_the_store(
    const std::vector<std::string>& calls_in_store) {
  std::vector<std::string> pairs;
  for (const std::string& in_store : calls_in_store) {
    for (const auto& [other, words] : message_calls()) {
      pairs.push_back(in_store + ":" + other);
      // The sender of a broadcast does not wait.
      if (other != "broadcast_object") pairs.push_back(other + ":" + in_store);
    }
  }
  return pairs;
}

::testing::Matcher<std::string> has_both_calls(const std::string& pair) {
  const std::size_t colon = pair.find(':');
  return AllOf(
      HasSubstr("rank 0: " + words_of(pair.substr(0, colon))),
      HasSubstr("rank 1: " + words_of(pair.substr(colon + 1))));
}

TEST(MixedCalls, EndBothRanksWithBothCalls) {
  std::vector<std::string> pairs =
      pairs_with_the_store({"save_state", "load_state"});
  for (const char* const pair :
       {"save_state:load_state",
        "load_state:save_state",
        "backward:gather",
        "gather:wait_for_everyone",
        "gather_object:gather",
        "gather:gather_object",
        "end_training:gather_object",
        "wait_for_everyone:broadcast_object"})
    pairs.emplace_back(pair);
  const auto errors = errors_of("threads", pairs);
  for (const std::string& pair : pairs) {
    SCOPED_TRACE(pair);
    ASSERT_TRUE(errors.contains(pair));
    EXPECT_THAT(errors.at(pair), ::testing::SizeIs(2));
    EXPECT_THAT(errors.at(pair), ::testing::Each(has_both_calls(pair)));
  }
}

// Where ranks do not see what the others do, the one that waits in the store
// asks.
TEST(MixedCalls, EndOnSeveralMachines) {
  const std::vector<std::string> pairs = pairs_with_the_store({"save_state"});
  const auto errors = errors_of("machines", pairs);
  for (const std::string& pair : pairs) {
    SCOPED_TRACE(pair);
    ASSERT_TRUE(errors.contains(pair));
    EXPECT_THAT(errors.at(pair), ::testing::SizeIs(2));
    EXPECT_THAT(errors.at(pair), ::testing::Contains(has_both_calls(pair)));
    EXPECT_THAT(
        errors.at(pair),
        ::testing::Each(AllOf(Not(HasSubstr("none")), HasSubstr("[comm] "))));
  }
}

// `if (is_main_process()) save_state(...)`.
TEST(MixedCalls, AreNotBlamedOnOneRankByTheLauncher) {
  for (const char* const transport : {"shared_memory", "gloo"}) {
    SCOPED_TRACE(transport);
    const TemporaryDirectory directory;
    const testing::ToolResult result = testing::run_tool(
        {"launch",
         "--cpu",
         "--num_processes",
         "2",
         "--transport",
         transport,
         MIXED_CALLS_RANK,
         directory.path().string(),
         "save_state",
         "wait_for_everyone"});
    EXPECT_EQ(result.code, 3);
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr(
                "[0] [comm] ranks 0 and 1 wait for each other, because they "
                "made different calls; all ranks must make the same:\n[0]   "
                "rank 0: save_state\n[0]   rank 1: barrier number "),
            HasSubstr("[1]   rank 0: save_state\n[1]   rank 1: barrier"),
            HasSubstr("in wait_for_everyone()"),
            HasSubstr("\naccelerate-cpp: the ranks made different calls, and "
                      "all were ended; rank "),
            Not(HasSubstr("; the others were ended"))));
  }
}

}  // namespace mixed_calls_test
}  // namespace accelerate
