#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace restart_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::ToolResult;

TEST(Restarts, RestartTheGroupUntilItSucceeds) {
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "--max_restarts",
       "3",
       "bash",
       "-c",
       "echo attempt $TORCHELASTIC_RESTART_COUNT; "
       "if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then "
       "[ $RANK = 1 ] && exit 7; sleep 1000; fi"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("[0] attempt 0"),
          HasSubstr("[0] attempt 1"),
          HasSubstr("[1] attempt 2"),
          Not(HasSubstr("attempt 3"))));
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 1 (process"),
          HasSubstr("starting again, 1 of at most 3 times"),
          HasSubstr("starting again, 2 of at most 3 times")));
}

TEST(Restarts, EndWithTheLastFailure) {
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "--max_restarts",
       "1",
       "bash",
       "-c",
       "exit $((3 + TORCHELASTIC_RESTART_COUNT))"});
  EXPECT_EQ(result.code, 4);
}

TEST(Restarts, ApplyToOneProcessToo) {
  const ToolResult result = run_tool(
      {"launch",
       "--max_restarts",
       "1",
       "bash",
       "-c",
       "[ $TORCHELASTIC_RESTART_COUNT = 1 ]"});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Restarts, DoNotFollowASignalToTheLauncher) {
  testing::Tool tool(
      {"launch",
       "--num_processes",
       "2",
       "--max_restarts",
       "5",
       "bash",
       "-c",
       "echo up; exec sleep 1000"});
  tool.read_line();
  tool.read_line();
  kill(tool.pid(), SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_THAT(result.err, Not(HasSubstr("starting again")));
}

TEST(Logs, HoldTheOutputOfEveryRankAndAttempt) {
  const testing::TemporaryDirectory directory;
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "--max_restarts",
       "1",
       "--log_dir",
       directory / "logs",
       "--tee",
       "1:2",
       "--role",
       "worker",
       "bash",
       "-c",
       "echo out $RANK; echo err $RANK >&2; exit $((1 - "
       "TORCHELASTIC_RESTART_COUNT))"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* const attempt : {"attempt_0", "attempt_1"}) {
    for (const std::string rank : {"0", "1"}) {
      const auto where = directory.path() / "logs" / attempt / rank;
      EXPECT_EQ(detail::read_file(where / "stdout.log"), "out " + rank + "\n");
      EXPECT_EQ(detail::read_file(where / "stderr.log"), "err " + rank + "\n");
    }
  }
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("[worker 1] err 1"), Not(HasSubstr("[worker 0]"))));
}

TEST(Logs, ThatCannotBeWrittenAreOneClearErrorAtTheStart) {
  const ToolResult result = run_tool(
      {"launch", "--num_processes", "2", "--log_dir", "/proc/logs", "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err, HasSubstr("cannot write /proc/logs/attempt_0/0/stdout.log"));
}

TEST(Logs, ThatFillTheDiskDoNotEndTheTraining) {
  const testing::TemporaryDirectory directory;
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "1",
       "--log_dir",
       directory / "logs",
       "bash",
       "-c",
       // This limits the launcher; the rank itself writes to a pipe.
       "prlimit --fsize=4096 --pid $PPID; head -c 20000 /dev/zero | tr '\\0' "
       "x; echo; echo done"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("done"));
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("warning: cannot write"),
          HasSubstr("stdout.log: File too large")));
}

TEST(Affinity, BindsEachRankToProcessorsOfItsOwn) {
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "--cpu_affinity",
       "auto",
       "bash",
       "-c",
       "echo $(taskset -cp $$ | sed 's/.*: //')"});
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("accelerate-cpp: rank 0: processors "));
  const auto of = [&](const char* prefix) {
    const auto at = result.out.find(prefix);
    return result.out.substr(at + 4, result.out.find('\n', at) - at - 4);
  };
  EXPECT_NE(of("[0] "), of("[1] "));
}

TEST(Quiet, PrintsNothingItself) {
  const ToolResult result = run_tool(
      {"launch", "-q", "--num_processes", "2", "bash", "-c", "exit 3"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.err, "");
}

TEST(Store, ListensAtTheLoopbackAddressOfOneMachine) {
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "bash",
       "-c",
       "[ $RANK = 0 ] || exit 0; port=$(printf %04X $MASTER_PORT); "
       "grep -ho \"[0-9A-F]*:$port [0-9A-F]*:0000 0A\" /proc/net/tcp "
       "/proc/net/tcp6"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::StartsWith("[0] 0100007F:"));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1)
      << result.out;
}

TEST(Store, HasASecretThatOnlyRanksLearn) {
  const std::vector<std::string> words{
      "launch",
      "--num_processes",
      "2",
      "bash",
      "-c",
      "echo $ACCELERATE_CPP_STORE_SECRET"};
  const auto secrets = [](const ToolResult& result) {
    std::set<std::string> all;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      all.insert(line.substr(line.find(' ') + 1));
    }
    return all;
  };
  const ToolResult first = run_tool(words), second = run_tool(words);
  ASSERT_EQ(secrets(first).size(), 1U) << first.out;
  EXPECT_EQ(secrets(first).begin()->size(), 32U);
  EXPECT_NE(secrets(first), secrets(second));
  std::vector<std::string> dry = words;
  dry.insert(dry.begin() + 1, "--dry_run");
  EXPECT_THAT(run_tool(dry).out, Not(HasSubstr("STORE_SECRET=")));
}

TEST(PythonPrograms, GetTheVariablesOfAccelerate) {
  const testing::TemporaryDirectory directory;
  const auto python = directory.path() / "python3";
  std::ofstream(python) << "#!/bin/sh\nenv\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const ToolResult alone = run_tool(
      {"launch", "--cpu", "--mixed_precision", "bf16", python, "train.py"});
  EXPECT_THAT(
      alone.out,
      AllOf(
          HasSubstr("ACCELERATE_USE_CPU=True\n"),
          HasSubstr("ACCELERATE_MIXED_PRECISION=bf16\n"),
          HasSubstr("ACCELERATE_DYNAMO_BACKEND=NO\n"),
          Not(HasSubstr("LOCAL_RANK="))));
  const ToolResult sharded = run_tool(
      {"launch",
       "--use_fsdp",
       "--num_processes",
       "2",
       "--fsdp_offload_params",
       "true",
       python,
       "train.py"});
  EXPECT_THAT(
      sharded.out,
      AllOf(
          HasSubstr("ACCELERATE_USE_FSDP=true\n"),
          HasSubstr("FSDP_OFFLOAD_PARAMS=true\n"),
          HasSubstr("TORCHELASTIC_USE_AGENT_STORE=True\n")));
  EXPECT_EQ(sharded.err, "");
}

TEST(OtherPrograms, GetWarningsOfSettingsWithoutEffect) {
  const ToolResult result = run_tool(
      {"launch",
       "--use_fsdp",
       "--fsdp_state_dict_type",
       "SHARDED_STATE_DICT",
       "--dynamo_backend",
       "inductor",
       "--num_processes",
       "2",
       "true"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("without effect on programs of this version of the "
                    "library: fsdp_state_dict_type (flag "
                    "--fsdp_state_dict_type); "),
          HasSubstr("only for Python programs, which this is not: "
                    "dynamo_backend (flag --dynamo_backend)\n")));
}

/// A directory with the interpreter "python3", which prints its arguments, and
/// the script "train.py".
class PretendPython {
 public:
  PretendPython() {
    add("python3", "echo python3 $*");
    add("own_python", "echo own $*");
    add("train.py", "echo by its first line");
  }

  // Runs `launch` with these arguments there; returns what one rank prints.
  [[nodiscard]] std::string launch(
      const std::vector<std::string>& arguments,
      std::map<std::string, std::string> variables = {}) const {
    std::vector<std::string> words{"launch", "--cpu"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    variables["PATH"] = directory_.path().string() + ":/usr/bin:/bin";
    const ToolResult result = run_tool(words, variables);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out.substr(0, result.out.find('\n'));
  }
  [[nodiscard]] std::string path(const char* name) const {
    return directory_ / name;
  }

 private:
  void add(const char* name, const char* line) const {
    std::ofstream(path(name)) << "#!/bin/sh\n" << line << "\n";
    std::filesystem::permissions(path(name), std::filesystem::perms::owner_all);
  }

  testing::TemporaryDirectory directory_;
};

TEST(PythonPrograms, AreStartedAsAccelerateStartsThem) {
  const PretendPython python;
  const std::string script = python.path("train.py");
  EXPECT_EQ(python.launch({script, "-x", "1"}), "python3 " + script + " -x 1");
  EXPECT_EQ(
      python.launch({"--num_processes", "1", "-m", "pack.train", "a"}),
      "python3 -m pack.train a");
  EXPECT_EQ(
      python.launch({"--module", "pack.train", "--module"}),
      "python3 -m pack.train --module");
  EXPECT_EQ(python.launch({"--no_python", script, "-x"}), "by its first line");
  EXPECT_EQ(
      python.launch({script}, {{"PYTHON_EXEC", python.path("own_python")}}),
      "own " + script);
  EXPECT_EQ(python.launch({"python3", script}), "python3 " + script);
  // Several processes write to pipes, so Python must not buffer their output.
  const ToolResult several = run_tool(
      {"launch", "--num_processes", "2", script},
      {{"PATH", python.path("") + ":/usr/bin:/bin"}});
  EXPECT_THAT(
      several.out,
      AllOf(
          HasSubstr("[0] python3 -u " + script + "\n"),
          HasSubstr("[1] python3 -u " + script + "\n")));
}

TEST(PythonPrograms, ThatCannotBeStartedAreNamed) {
  EXPECT_THAT(
      run_tool({"launch", "train.py"}).err,
      HasSubstr("[launch] program \"train.py\" does not exist"));
  EXPECT_THAT(
      run_tool({"launch", "-m", "pack.train"}, {{"PATH", "/nonexistent"}}).err,
      HasSubstr("[launch] a Python program needs python3"));
  EXPECT_THAT(
      run_tool({"launch", "-m", "--no_python", "pack.train"}).err,
      HasSubstr("[launch] --module and --no_python exclude each other"));
  EXPECT_THAT(
      run_tool({"launch", "--tpu", "true"}).err, HasSubstr("torch_xla"));
}

}  // namespace restart_test
}  // namespace accelerate
