// `accelerate-cpp plan`: what it prints, writes and refuses.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace plan_command_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::ToolResult;

class PlanCommand : public ::testing::Test {
 protected:
  PlanCommand() {
    std::ofstream(directory_ / "config.json")
        << R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
               "num_hidden_layers": 32, "num_attention_heads": 32,
               "num_key_value_heads": 8, "intermediate_size": 14336,
               "hidden_act": "silu"})";
  }

  [[nodiscard]] ToolResult plan(
      const std::vector<std::string>& flags,
      const std::map<std::string, std::string>& variables = {}) const {
    std::vector<std::string> all{"plan", directory_.path()};
    all.insert(all.end(), flags.begin(), flags.end());
    return run_tool(all, variables);
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(PlanCommand, PrintsTheBestAndWhyOthersLose) {
  const ToolResult result = plan(
      {"--ranks",
       "64",
       "--sequence",
       "8192",
       "--batch",
       "4M",
       "--memory",
       "80GB",
       "--link",
       "400Gb/s",
       "--compute",
       "400TF"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("64 ranks, 8 on a node"),
          HasSubstr("best: "),
          HasSubstr("why not"),
          HasSubstr("docs/guides/planning.md")));
}

TEST_F(PlanCommand, KeepsDegreesThatAreGiven) {
  const ToolResult result = plan(
      {"--ranks",
       "32",
       "--sequence",
       "4096",
       "--tensor",
       "4",
       "--pipeline",
       "2",
       "--sharding",
       "zero1",
       "--recompute",
       "no",
       "--top",
       "3"});
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  int num_layouts = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("micro-batch ") == std::string::npos) continue;
    ++num_layouts;
    EXPECT_THAT(
        line,
        AllOf(
            HasSubstr("tensor 4"),
            HasSubstr("pipeline 2"),
            HasSubstr("(ZeRO-1)"),
            Not(HasSubstr("recomputing"))));
  }
  EXPECT_GT(num_layouts, 1);
}

TEST_F(PlanCommand, KeepsShardsOnADiskThatIsGiven) {
  const ToolResult result = plan(
      {"--disk_speed",
       "3GB/s",
       "--on_disk",
       "yes",
       "--offload_directory",
       "/scratch",
       "--apply",
       "--config_file",
       directory_ / "disk.yaml"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("1 rank, on disk, "),
          HasSubstr("per rank\n"),
          HasSubstr("offload_optimizer_nvme_path: \"/scratch\"\n")));
  EXPECT_THAT(
      plan({"--on_disk", "yes"}).err,
      HasSubstr("(--disk_speed) must be above 0"));
}

TEST_F(PlanCommand, AppliesItsBestToTheConfigFile) {
  const std::map<std::string, std::string> home{
      {"HF_HOME", directory_.path() / "hf"}};
  const ToolResult result = plan(
      {"--ranks",
       "4",
       "--ranks_per_node",
       "4",
       "--tensor",
       "2",
       "--shard",
       "2",
       "--sharding",
       "zero2",
       "--apply"},
      home);
  EXPECT_EQ(result.code, 0) << result.err;
  const auto file = directory_.path() / "hf/accelerate/default_config.yaml";
  EXPECT_THAT(result.out, HasSubstr("Written to " + file.string()));
  EXPECT_THAT(detail::read_file(file), HasSubstr("zero_stage: 2\n"));
  // `launch` accepts every line of the file.
  const ToolResult launch =
      run_tool({"launch", "--dry_run", "--cpu", "--config_file", file, "true"});
  EXPECT_EQ(launch.code, 0) << launch.err;
  EXPECT_THAT(
      launch.out,
      AllOf(
          HasSubstr("parallelism_config_tp_size = 2  (file "),
          HasSubstr("parallelism_config_dp_shard_size = 2  (file "),
          HasSubstr("num_processes = 4  (file ")));
  // Writes to another file.
  const std::string other = directory_.path() / "other.yaml";
  for (const auto& [ranks, type] :
       {std::pair("1", "distributed_type: 'NO'\n"),
        {"2", "distributed_type: MULTI_GPU\n"}}) {
    EXPECT_EQ(
        plan({"--ranks",
              ranks,
              "--sharding",
              "none",
              "--memory",
              "2000GB",
              "--apply",
              "--config_file",
              other})
            .code,
        0);
    EXPECT_THAT(detail::read_file(other), HasSubstr(type));
    EXPECT_EQ(run_tool({"config", "show", "--config_file", other}).code, 0);
  }
}

TEST_F(PlanCommand, PrintsAPageForUpTo16384Ranks) {
  const ToolResult result =
      plan({"--sequence", "4096", "--batch", "512K", "--scaling"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (int ranks = 8; ranks <= 16'384; ranks *= 2)
    EXPECT_THAT(result.out, HasSubstr("\n" + std::to_string(ranks) + " "));
}

TEST_F(PlanCommand, PrintsAPageForTheRanksThatAreGiven) {
  const ToolResult page = plan({"--scaling", "--scaling_ranks", "8,24"});
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_THAT(page.out, AllOf(HasSubstr("\n8 "), HasSubstr("\n24 ")));
  EXPECT_EQ(std::count(page.out.begin(), page.out.end(), '\n'), 3);
  EXPECT_NE(plan({"--scaling_ranks", "8"}).code, 0);
}

TEST_F(PlanCommand, FailsIfNothingFits) {
  const ToolResult result = plan({"--ranks", "2", "--memory", "1GB"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("Nothing fits. The smallest:"));
}

TEST_F(PlanCommand, KnowsLinksByName) {
  const auto with = [&](const std::vector<std::string>& links) {
    std::vector<std::string> flags{"--ranks", "16"};
    flags.insert(flags.end(), links.begin(), links.end());
    const ToolResult result = plan(flags);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(
      with({"--link", "NDR", "--node_link", "nvlink4"}),
      with({"--link", "45GB/s", "--node_link", "360GB/s"}));
  EXPECT_EQ(
      with({"--node_link", "pcie5"}),
      with({"--node_link", "50.4GB/s", "--node_link_latency", "5us"}));
  EXPECT_EQ(
      with({"--node_link", "pcie5", "--node_link_latency", "3us"}),
      with({"--node_link", "50.4GB/s"}));
}

TEST_F(PlanCommand, RefusesWhatMakesNoSense) {
  const auto complaint = [&](const std::vector<std::string>& flags) {
    const ToolResult result = plan(flags);
    EXPECT_NE(result.code, 0);
    return result.err;
  };
  EXPECT_THAT(
      complaint({"--link", "fast"}),
      HasSubstr("--link is \"fast\", but must be"));
  EXPECT_THAT(complaint({"--compute", "-1TF"}), HasSubstr("--compute is"));
  EXPECT_THAT(complaint({"--batch", "0"}), HasSubstr("--batch is \"0\""));
  EXPECT_THAT(complaint({"--sharding", "half"}), HasSubstr("--sharding"));
  EXPECT_THAT(
      complaint({"--ranks", "6", "--tensor", "4"}),
      HasSubstr("no layout of 6 ranks divides"));
  EXPECT_THAT(
      run_tool({"plan", directory_.path() / "nowhere"}).err,
      HasSubstr("nowhere"));
}

}  // namespace plan_command_test
}  // namespace accelerate
