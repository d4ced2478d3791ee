// What the launcher's settings change in the processes it starts.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace launch_options_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::ToolResult;

std::vector<std::string> sorted(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Launches two ranks with these flags and returns what they print.
ToolResult ranks_with(
    std::vector<std::string> flags,
    const std::string& script) {
  flags.insert(flags.begin(), {"launch", "--num_processes", "2"});
  flags.insert(flags.end(), {"bash", "-c", script});
  return run_tool(flags);
}

std::string dry_run_with(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"launch", "--num_processes", "2"});
  flags.insert(flags.end(), {"--dry_run", "true"});
  const ToolResult result = run_tool(flags);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out;
}

TEST(LaunchOption, GpuIdsAreTheDevicesThatRanksSee) {
  const std::string script = "echo ${CUDA_VISIBLE_DEVICES-unset}";
  EXPECT_THAT(
      sorted(ranks_with({"--gpu_ids", "0,2"}, script).out),
      ElementsAre("[0] 0,2", "[1] 0,2"));
  EXPECT_THAT(
      sorted(ranks_with({"--gpu_ids", "all"}, script).out),
      ElementsAre("[0] unset", "[1] unset"));
}

TEST(LaunchOption, NumCpuThreadsPerProcessAreThoseOfOpenMP) {
  EXPECT_THAT(
      sorted(
          ranks_with(
              {"--num_cpu_threads_per_process", "3"}, "echo $OMP_NUM_THREADS")
              .out),
      ElementsAre("[0] 3", "[1] 3"));
}

TEST(LaunchOption, MainProcessIpAndPortAreWhereRanksFindTheStore) {
  EXPECT_THAT(
      sorted(ranks_with({"--main_process_ip", "127.0.0.2"}, "echo $MASTER_ADDR")
                 .out),
      ElementsAre("[0] 127.0.0.2", "[1] 127.0.0.2"));
  EXPECT_THAT(
      dry_run_with({"--main_process_port", "29511"}),
      HasSubstr("MASTER_PORT=29511\n"));
  EXPECT_THAT(dry_run_with({}), HasSubstr("MASTER_PORT=(a free one)\n"));
}

TEST(LaunchOption, EnableCpuAffinityIsTheSameAsAuto) {
  const auto processors = [](const std::vector<std::string>& flags) {
    std::vector<std::string> found;
    std::istringstream stream(dry_run_with(flags));
    for (std::string line; std::getline(stream, line);) {
      if (line.starts_with("  processors: ")) found.push_back(line);
    }
    return found;
  };
  const auto automatic = processors({"--cpu_affinity", "auto"});
  EXPECT_EQ(automatic.size(), 2u);
  EXPECT_EQ(processors({"--enable_cpu_affinity"}), automatic);
  EXPECT_THAT(processors({}), ::testing::IsEmpty());
}

TEST(LaunchOption, MultiGpuTakesSeveralProcesses) {
  const ToolResult one =
      run_tool({"launch", "--multi_gpu", "--num_processes", "1", "true"});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("--multi_gpu needs at least two processes"));
  EXPECT_THAT(
      sorted(ranks_with({"--multi_gpu"}, "echo $WORLD_SIZE").out),
      ElementsAre("[0] 2", "[1] 2"));
}

TEST(LaunchOption, TeeNeedsFiles) {
  const ToolResult result = ranks_with({"--tee", "2"}, "echo out");
  EXPECT_THAT(sorted(result.out), ElementsAre("[0] out", "[1] out"));
  EXPECT_EQ(
      result.err,
      "accelerate-cpp: warning: without effect, since there is no log_dir: tee "
      "(flag --tee)\n");
  EXPECT_EQ(ranks_with({"--tee", "3"}, "true").err, "");
}

TEST(LaunchOption, CpuAffinityOfOneRankLeavesItsThreadsToIt) {
  const ToolResult result = run_tool(
      {"launch", "--num_processes", "1", "--cpu_affinity", "auto", "true"});
  EXPECT_THAT(
      result.err,
      ::testing::MatchesRegex("accelerate-cpp: rank 0: processors [-0-9,]+\n"));
}

TEST(LaunchOption, NoPythonStartsAnyProgramAsItIs) {
  const ToolResult result =
      run_tool({"launch", "--no_python", "printf", "%s", "as it is"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "as it is");
  EXPECT_EQ(result.err, "");
}

TEST(LaunchOption, DebugLevelAndTimeoutReachTheRanks) {
  const ToolResult result = ranks_with(
      {"--debug", "--log_level", "error", "--timeout_seconds", "7"},
      "echo $ACCELERATE_CPP_CONFIG");
  EXPECT_THAT(
      result.out,
      ::testing::AllOf(
          HasSubstr("\"debug\":true"),
          HasSubstr("\"log_level\":\"error\""),
          HasSubstr("\"timeout_seconds\":7")));
}

// Scripts that print how they were called stand in for other launchers.
class OtherLauncher : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(directory_ / "bin");
    std::ofstream(directory_ / "hosts") << "localhost slots=1\nnode1 slots=1\n";
  }

  void make_program(const std::string& name, const std::string& lines) {
    const auto path = directory_.path() / "bin" / name;
    std::ofstream(path) << "#!/bin/sh\n" << lines;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  ToolResult launch(std::vector<std::string> words) {
    words.insert(words.begin(), "launch");
    return run_tool(
        words,
        {{"PATH",
          (directory_ / "bin").string() + ":" +
              std::string(std::getenv("PATH"))}});
  }

  [[nodiscard]] std::string hosts() const { return directory_ / "hosts"; }

  testing::TemporaryDirectory directory_;
};

TEST_F(OtherLauncher, IsMpirunForItsHosts) {
  make_program(
      "mpirun",
      "[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1'; exit; }\n"
      "echo $ACCELERATE_MIXED_PRECISION \"$@\"\n");
  const ToolResult result = launch(
      {"--mpirun_hostfile",
       hosts(),
       "--num_processes",
       "4",
       "--num_machines",
       "2",
       "--main_process_ip",
       "node0",
       "--main_process_port",
       "29511",
       "--mixed_precision",
       "bf16",
       "echo",
       "trained"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "bf16 --hostfile " + hosts() +
          " --npernode 2 -n 4 --bind-to socket echo trained\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(OtherLauncher, IsNamedWithTheSettingsThatItDoesNotKnow) {
  make_program("mpirun", "exit 0\n");
  const ToolResult result = launch(
      {"--mpirun_hostfile",
       hosts(),
       "--num_processes",
       "2",
       "--log_dir",
       "logs",
       "--max_restarts",
       "3",
       "--remote_shell",
       "pdsh",
       "true"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(
      result.err,
      "accelerate-cpp: warning: without effect, since mpirun starts the ranks: "
      "log_dir (flag --log_dir), max_restarts (flag --max_restarts), "
      "remote_shell (flag --remote_shell)\n");
}

TEST_F(OtherLauncher, IsNotUsedForMpiBesideAnEngine) {
  const ToolResult result = launch(
      {"--mpirun_hostfile",
       hosts(),
       "--num_processes",
       "2",
       "--use_fsdp",
       "--deepspeed_hostfile",
       "x",
       "--tee",
       "3",
       "echo",
       "here"});
  EXPECT_THAT(sorted(result.out), ElementsAre("[0] here", "[1] here"));
  EXPECT_EQ(
      result.err,
      "accelerate-cpp: warning: without effect, since this launcher itself "
      "starts the ranks: mpirun_hostfile (flag --mpirun_hostfile), "
      "deepspeed_hostfile (flag --deepspeed_hostfile)\n");
}

TEST_F(OtherLauncher, IsDeepSpeedsOnSeveralMachines) {
  make_program("deepspeed", "echo \"$@\"\n");
  const auto deepspeed = [&](std::vector<std::string> flags) {
    flags.insert(
        flags.begin(),
        {"--use_deepspeed",
         "--num_machines",
         "2",
         "--num_processes",
         "4",
         "--main_process_ip",
         "node0",
         "--main_process_port",
         "29511"});
    flags.emplace_back("true");
    const ToolResult result = launch(flags);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  const std::string end =
      " --master_addr node0 --master_port 29511 --no_python true\n";
  EXPECT_EQ(
      deepspeed(
          {"--deepspeed_hostfile",
           "hosts",
           "--deepspeed_exclusion_filter",
           "node2:0",
           "--deepspeed_multinode_launcher",
           "pdsh"}),
      "--hostfile hosts --no_local_rank --launcher pdsh --exclude node2:0" +
          end);
  EXPECT_EQ(
      deepspeed(
          {"--deepspeed_hostfile",
           "hosts",
           "--deepspeed_inclusion_filter",
           "node1",
           "--deepspeed_multinode_launcher",
           "slurm"}),
      "--hostfile hosts --no_local_rank --launcher slurm --include node1" +
          end);
}

// Native ranks do not need Python.
TEST_F(OtherLauncher, IsNotNeededByNativeProgramsWithDeepSpeedsSettings) {
  const ToolResult result = launch(
      {"--use_deepspeed",
       "--num_machines",
       "2",
       "--num_processes",
       "2",
       "--machine_rank",
       "0",
       "--main_process_ip",
       "127.0.0.1",
       "--main_process_port",
       "29511",
       "--dry_run",
       "true"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("deepspeed --hostfile")));
  EXPECT_THAT(result.out, HasSubstr("true"));
}

TEST_F(OtherLauncher, IsPdshForHosts) {
  std::vector<std::string> words{
      "--hostfile",
      hosts(),
      "--main_process_ip",
      "127.0.0.1",
      "--dry_run",
      "true"};
  EXPECT_THAT(launch(words).out, HasSubstr("\nssh -o BatchMode=yes -- node1"));
  words.insert(words.begin(), {"--remote_shell", "pdsh"});
  const ToolResult result = launch(words);
  EXPECT_THAT(
      result.out,
      ::testing::AllOf(
          HasSubstr("\npdsh -S -R ssh -w node1 "),
          Not(HasSubstr("BatchMode"))));
  EXPECT_EQ(result.err, "");
}

TEST_F(OtherLauncher, KnowsMachinesFromTheHostFileAlone) {
  const ToolResult result = launch(
      {"--hostfile",
       hosts(),
       "--main_process_ip",
       "127.0.0.1",
       "--num_machines",
       "3",
       "--dry_run",
       "true"});
  EXPECT_THAT(result.out, HasSubstr("--num_machines 2 "));
  EXPECT_EQ(
      result.err,
      "accelerate-cpp: warning: without effect, since the host file says it: "
      "num_machines (flag --num_machines)\n");
}

}  // namespace launch_options_test
}  // namespace accelerate
