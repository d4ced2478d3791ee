// Several machines, simulated by several launchers on this one.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace machines_test {

using ::testing::AllOf;
using testing::free_port;
using ::testing::HasSubstr;
using testing::run_tool;
using testing::Tool;
using testing::ToolResult;

std::vector<ToolResult> run_machines(
    int count,
    const std::vector<std::string>& flags,
    const std::string& script,
    const std::map<std::string, std::string>& variables = {}) {
  const std::string port = free_port();
  std::vector<std::unique_ptr<Tool>> tools;
  // Starts the other machines first; they wait for machine 0.
  for (int rank = count - 1; rank >= 0; --rank) {
    std::vector<std::string> words{
        "launch",
        "--num_machines",
        std::to_string(count),
        "--num_processes",
        std::to_string(2 * count),
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port,
        "--machine_rank",
        std::to_string(rank)};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"bash", "-c", script});
    tools.push_back(std::make_unique<Tool>(words, variables));
  }
  std::vector<ToolResult> results;
  for (auto tool = tools.rbegin(); tool != tools.rend(); ++tool) {
    results.push_back((*tool)->wait());
  }
  return results;
}

TEST(Machines, NumberTheirRanksConsecutively) {
  const auto results = run_machines(
      3,
      {},
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK");
  for (const ToolResult& result : results) {
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_THAT(
      results[0].out,
      AllOf(HasSubstr("[0] 0/6 0/2 0"), HasSubstr("[1] 1/6 1/2 0")));
  EXPECT_THAT(
      results[2].out,
      AllOf(HasSubstr("[4] 4/6 0/2 2"), HasSubstr("[5] 5/6 1/2 2")));
}

TEST(Machines, EndTogetherWhenARankFails) {
  const auto results =
      run_machines(2, {}, "if [ $RANK = 3 ]; then exit 5; fi; exec sleep 1000");
  EXPECT_EQ(results[0].code, 5);
  EXPECT_EQ(results[1].code, 5);
  EXPECT_THAT(
      results[0].err, HasSubstr("ranks on machine 1 failed with exit code 5"));
  EXPECT_THAT(results[1].err, HasSubstr("rank 3 (process"));
}

TEST(Machines, StartAgainTogether) {
  const auto results = run_machines(
      2,
      {"--max_restarts", "2"},
      "if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then echo through; exit; fi;"
      "if [ $RANK = $TORCHELASTIC_RESTART_COUNT ]; then exit 5; fi;"
      "exec sleep 1000");
  for (const ToolResult& result : results) {
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("through"));
  }
}

TEST(Machines, TakeALauncherBackThatWasKilled) {
  const std::string port = free_port();
  const auto start = [&](int machine) {
    return std::make_unique<Tool>(std::vector<std::string>{
        "launch",
        "--num_machines",
        "3",
        "--num_processes",
        "3",
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port,
        "--machine_rank",
        std::to_string(machine),
        "--max_restarts",
        "1",
        "bash",
        "-c",
        "echo up; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000"});
  };
  std::vector<std::unique_ptr<Tool>> tools;
  for (int machine = 0; machine < 3; ++machine) tools.push_back(start(machine));
  for (const auto& tool : tools)
    EXPECT_THAT(tool->read_line(), HasSubstr("up"));
  ::kill(tools[1]->pid(), SIGKILL);
  tools[1]->wait();
  tools[1] = start(1);
  for (const auto& tool : tools) {
    const ToolResult result = tool->wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("up"));
  }
}

TEST(Machines, SayThatNothingStartsAgainWithoutTheFirst) {
  const std::string port = free_port();
  std::vector<std::unique_ptr<Tool>> tools;
  for (const char* const machine : {"0", "1"}) {
    tools.push_back(std::make_unique<Tool>(std::vector<std::string>{
        "launch",
        "--num_machines",
        "2",
        "--num_processes",
        "2",
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port,
        "--machine_rank",
        machine,
        "--max_restarts",
        "3",
        "bash",
        "-c",
        "echo up; exec sleep 1000"}));
  }
  for (const auto& tool : tools)
    EXPECT_THAT(tool->read_line(), HasSubstr("up"));
  ::kill(tools[0]->pid(), SIGKILL);
  const ToolResult result = tools[1]->wait();
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(
      result.err,
      HasSubstr("machine 0, which keeps the store, is gone, and the group "
                "cannot be started again without it"));
}

TEST(Machines, MeasureTheirConnections) {
  const auto results = run_machines(3, {"--check"}, "echo $RANK");
  for (const ToolResult& result : results) {
    EXPECT_EQ(result.code, 0) << result.err;
  }
  for (const char* const pair :
       {"machine 0 (lo 127.0.0.1) to machine 1: ",
        "machine 2 (lo 127.0.0.1) to machine 0: ",
        " us there and back, "}) {
    EXPECT_THAT(results[0].err, HasSubstr(pair));
  }
}

constexpr const char* kSecretVariable = "ACCELERATE_CPP_STORE_SECRET";

TEST(Machines, GiveAllRanksOneSecret) {
  const std::string given = "a-secret-of-the-user";
  for (const bool is_given : {false, true}) {
    std::map<std::string, std::string> variables;
    if (is_given) variables[kSecretVariable] = given;
    const auto results =
        run_machines(2, {}, "echo =$ACCELERATE_CPP_STORE_SECRET", variables);
    std::set<std::string> secrets;
    for (const ToolResult& result : results) {
      EXPECT_EQ(result.code, 0) << result.err;
      std::istringstream lines(result.out);
      for (std::string line; std::getline(lines, line);) {
        secrets.insert(line.substr(line.find('=') + 1));
      }
    }
    ASSERT_EQ(secrets.size(), 1U);
    EXPECT_GE(secrets.begin()->size(), 20U);
    if (is_given) {
      EXPECT_EQ(*secrets.begin(), given);
    }
  }
}

TEST(Machines, RefuseALauncherWithAnotherSecret) {
  const std::vector<std::string> words{
      "launch",
      "--num_machines",
      "2",
      "--num_processes",
      "2",
      "--main_process_ip",
      "127.0.0.1",
      "--main_process_port",
      free_port(),
      "--machine_rank"};
  const auto words_of = [&](const std::string& machine) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {machine, "true"});
    return all;
  };
  const Tool first(words_of("0"), {{kSecretVariable, "a-secret-of-the-user"}});
  const ToolResult other =
      run_tool(words_of("1"), {{kSecretVariable, "another-secret-here"}});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(
      other.err,
      HasSubstr(
          "has a different ACCELERATE_CPP_STORE_SECRET; set it to the same"));
  const ToolResult weak = run_tool(words_of("1"), {{kSecretVariable, "weak"}});
  EXPECT_EQ(weak.code, 2);
  EXPECT_THAT(weak.err, HasSubstr("has 4 characters, but must have 16 to 256"));
}

TEST(Machines, CanBeEndedWhileTheyWait) {
  Tool tool(
      {"launch",
       "--num_machines",
       "2",
       "--num_processes",
       "2",
       "--main_process_ip",
       "127.0.0.1",
       "--main_process_port",
       free_port(),
       "true"});
  // Machine 0 waits for machine 1.
  kill(tool.pid(), SIGTERM);
  EXPECT_NE(tool.wait().code, 0);
}

TEST(Machines, CanBeEndedWhileConnecting) {
  Tool tool(
      {"launch",
       "--num_machines",
       "2",
       "--machine_rank",
       "1",
       "--num_processes",
       "2",
       "--main_process_ip",
       "127.0.0.1",
       "--main_process_port",
       free_port(),
       "true"});
  kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.wait().code, 128 + SIGTERM);
}

TEST(Machines, NeedToKnowThePort) {
  const ToolResult result = run_tool(
      {"launch",
       "--num_machines",
       "2",
       "--num_processes",
       "2",
       "--main_process_ip",
       "127.0.0.1",
       "--main_process_port",
       "0",
       "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("must all know the address and port"));
}

class HostFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(directory_ / "bin");
    std::ofstream(directory_ / "bin/ssh")
        << "#!/bin/sh\n# -o BatchMode=yes -- HOST LINE\n"
           "[ \"$4\" = dark ] && { echo no route >&2; exit 255; }\n"
           "exec sh -c \"$5\"\n";
    std::filesystem::permissions(
        directory_ / "bin/ssh", std::filesystem::perms::owner_all);
  }
  ToolResult launch(const std::string& hosts, const std::string& script) {
    std::ofstream(directory_ / "hosts") << hosts;
    return run_tool(
        {"launch",
         "--hostfile",
         directory_ / "hosts",
         "--main_process_ip",
         "127.0.0.1",
         "--main_process_port",
         free_port(),
         "bash",
         "-c",
         script},
        {{"PATH",
          (directory_ / "bin").string() + ":" +
              std::string(std::getenv("PATH"))}});
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(HostFile, StartsOnEveryHost) {
  const ToolResult result =
      launch("localhost slots=2\nnode1 slots=2\n", "echo $RANK of $WORLD_SIZE");
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* const line : {"[0] 0 of 4", "[1] 1 of 4", "[3] 3 of 4"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
}

TEST_F(HostFile, FailsWithTheRankThatFails) {
  const ToolResult result = launch(
      "localhost slots=1\nnode1 slots=1\n",
      "[ $RANK = 1 ] && exit 7; exec sleep 1000");
  EXPECT_EQ(result.code, 7) << result.err;
}

}  // namespace machines_test
}  // namespace accelerate
