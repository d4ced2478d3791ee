#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace launch_settings_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::ToolResult;

class LaunchSettings : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string file = directory_.path() / "config.yaml";
    std::ofstream(file) << text;
    return file;
  }

  /// Returns the variables that `launch` with these flags adds for a program.
  static std::string added(
      std::vector<std::string> flags,
      const std::string& program = "true") {
    flags.insert(flags.begin(), "launch");
    flags.insert(flags.end(), {"--num_processes", "2", "--dry_run", program});
    const ToolResult result = run_tool(flags);
    EXPECT_EQ(result.code, 0) << result.err;
    const std::size_t begin = result.out.find("every rank:\n");
    const std::size_t end = result.out.find("rank 0:\n");
    return result.out.substr(begin, end - begin);
  }

  static nlohmann::json handover(const std::vector<std::string>& flags) {
    const std::string text = added(flags);
    const std::string name = "ACCELERATE_CPP_CONFIG=";
    const std::size_t begin = text.find(name) + name.size();
    return nlohmann::json::parse(
        text.substr(begin, text.find('\n', begin) - begin));
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(LaunchSettings, OfNativeProgramsAreThoseThatWereGiven) {
  EXPECT_THAT(
      added({"--use_fsdp", "--fsdp_offload_params", "true"}),
      AllOf(
          HasSubstr("ACCELERATE_USE_FSDP=true\n"),
          HasSubstr("FSDP_OFFLOAD_PARAMS=true\n"),
          Not(HasSubstr("FSDP_VERSION")),
          Not(HasSubstr("FSDP_MIN_NUM_PARAMS")),
          Not(HasSubstr("FSDP_CPU_RAM_EFFICIENT_LOADING")),
          Not(HasSubstr("ACCELERATE_MIXED_PRECISION")),
          Not(HasSubstr("DYNAMO"))));
  EXPECT_THAT(
      added(
          {"--use_fsdp",
           "--use_parallelism_config",
           "--parallelism_config_dp_shard_size",
           "2"}),
      AllOf(
          HasSubstr("PARALLELISM_CONFIG_DP_SHARD_SIZE=2\n"),
          Not(HasSubstr("DP_REPLICATE_SIZE"))));
}

TEST_F(LaunchSettings, OfPythonProgramsAreAcceleratesToTheLast) {
  std::ofstream(directory_ / "train.py") << "#!/bin/sh\n";
  const std::string program = directory_.path() / "train.py";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_THAT(
      added({"--use_fsdp"}, program),
      AllOf(
          HasSubstr("FSDP_VERSION=1\n"),
          HasSubstr("FSDP_MIN_NUM_PARAMS=100000000\n"),
          HasSubstr("FSDP_CPU_RAM_EFFICIENT_LOADING=true\n"),
          HasSubstr("FSDP_FORWARD_PREFETCH=false\n"),
          HasSubstr("ACCELERATE_MIXED_PRECISION=no\n"),
          HasSubstr("ACCELERATE_DYNAMO_BACKEND=NO\n")));
  EXPECT_THAT(
      added({"--use_deepspeed"}, program),
      Not(HasSubstr("ACCELERATE_DEEPSPEED_ZERO_STAGE")));
}

TEST_F(LaunchSettings, NameTheFileThatChoseTheEngine) {
  const std::string file =
      write("distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {}\n");
  const auto json = handover({"--config_file", file});
  EXPECT_EQ(json.at("use_fsdp"), true);
  EXPECT_EQ(json.at("origins").at("use_fsdp"), "file " + file + ", line 1");
}

TEST_F(LaunchSettings, HandOverWhatWasReportedAlready) {
  const std::vector<std::string> flags{"--dynamo_backend", "inductor"};
  EXPECT_THAT(
      handover(flags).at("reported"), ::testing::ElementsAre("dynamo_backend"));
  EXPECT_FALSE(handover({"--dynamo_backend", "inductor", "--quiet"})
                   .contains("reported"));
  EXPECT_FALSE(handover({}).contains("reported"));
}

TEST_F(LaunchSettings, WithoutAnyEffectAreReported) {
  const ToolResult result = run_tool(
      {"launch",
       "--same_network",
       "--monitor_interval",
       "5",
       "--rdzv_backend",
       "c10d",
       "--rdzv_conf",
       "timeout=900",
       "true"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(
      result.err,
      "accelerate-cpp: warning: without effect, since this launcher does not "
      "work as torchrun does: same_network (flag --same_network), rdzv_backend "
      "(flag --rdzv_backend), rdzv_conf (flag --rdzv_conf), monitor_interval "
      "(flag --monitor_interval)\n");
}

TEST_F(LaunchSettings, OfAFileThatAccelerateWroteCauseNoWarning) {
  const std::string file = write(
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: "
      "MULTI_CPU\ndowncast_bf16: 'no'\nenable_cpu_affinity: false\n"
      "machine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\n"
      "num_machines: 1\nnum_processes: 2\nrdzv_backend: static\n"
      "same_network: false\ntpu_env: []\ntpu_use_cluster: false\n"
      "tpu_use_sudo: false\nuse_cpu: true\n");
  const ToolResult result = run_tool({"launch", "--config_file", file, "true"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
}

// Files that Accelerate writes for its own answers ask for nothing.
TEST_F(LaunchSettings, OfAcceleratesOwnAnswersCauseNoWarning) {
  const std::string common =
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndowncast_bf16: 'no'\n"
      "enable_cpu_affinity: false\nmachine_rank: 0\n"
      "main_training_function: main\nmixed_precision: bf16\n"
      "num_machines: 1\nnum_processes: 2\nrdzv_backend: static\n"
      "same_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
      "tpu_use_sudo: false\n";
  for (const std::string engine :
       {"distributed_type: FSDP\nuse_cpu: true\nfsdp_config:\n"
        "  fsdp_activation_checkpointing: false\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  fsdp_backward_prefetch: BACKWARD_PRE\n"
        "  fsdp_cpu_ram_efficient_loading: true\n"
        "  fsdp_forward_prefetch: false\n  fsdp_offload_params: false\n"
        "  fsdp_sharding_strategy: FULL_SHARD\n"
        "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
        "  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\n",
        "distributed_type: FSDP\nuse_cpu: true\nfsdp_config:\n"
        "  fsdp_version: 1\n  fsdp_state_dict_type: FULL_STATE_DICT\n",
        "distributed_type: DEEPSPEED\nuse_cpu: true\ndeepspeed_config:\n"
        "  deepspeed_multinode_launcher: standard\n"
        "  gradient_accumulation_steps: 1\n"
        "  offload_optimizer_device: none\n  offload_param_device: none\n"
        "  zero3_init_flag: false\n  zero3_save_16bit_model: false\n"
        "  zero_stage: 2\n",
        "distributed_type: MULTI_GPU\ngpu_ids: all\nuse_cpu: false\n"
        "dynamo_backend: 'NO'\n"}) {
    const std::string file = write(common + engine);
    const ToolResult result =
        run_tool({"launch", "--config_file", file, "true"});
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "") << engine;
  }
}

TEST_F(LaunchSettings, OfAFileThatDoNothingAreOneLine) {
  const std::string file = write(
      "distributed_type: DEEPSPEED\nnum_processes: 1\nuse_cpu: true\n"
      "same_network: true\nrdzv_backend: c10d\nipex_config: {ipex: true}\n"
      "deepspeed_config:\n  zero3_save_16bit_model: true\n"
      "  deepspeed_multinode_launcher: slurm\n"
      "dynamo_config:\n  dynamo_backend: EAGER\n");
  const ToolResult result = run_tool({"launch", "--config_file", file, "true"});
  EXPECT_EQ(result.code, 0);
  const auto where = [&](const std::string& line) {
    return " (file " + file + ", line " + line + ")";
  };
  EXPECT_EQ(
      result.err,
      "accelerate-cpp: warning: passed on, but without effect on programs of "
      "this version of the library: zero3_save_16bit_model" +
          where("8") +
          "; only for Python programs, which this is not: dynamo_backend" +
          where("11") +
          "; without effect, since this launcher does not work as torchrun "
          "does: rdzv_backend" +
          where("5") +
          "; without effect, since this launcher itself starts the ranks: "
          "deepspeed_multinode_launcher" +
          where("9") +
          "; no longer in Accelerate, ignored: ipex_config (file " + file +
          ")\n");
}

TEST_F(LaunchSettings, ShardOnTheCpu) {
  EXPECT_THAT(
      added({"--cpu", "--use_fsdp"}),
      AllOf(
          HasSubstr("ACCELERATE_USE_FSDP=true\n"),
          HasSubstr("\"use_cpu\":true")));
  EXPECT_EQ(handover({"--cpu", "--use_deepspeed"}).at("use_deepspeed"), true);
  EXPECT_THAT(
      run_tool({"launch", "--cpu", "--use_fsdp", "python3", "train.py"}).err,
      HasSubstr("--use_fsdp, --cpu exclude each other"));
  EXPECT_THAT(
      run_tool({"launch", "--cpu", "--use_fsdp", "--use_deepspeed", "true"})
          .err,
      HasSubstr("exclude each other"));
  EXPECT_THAT(
      run_tool({"launch", "--cpu", "--multi_gpu", "true"}).err,
      HasSubstr("exclude each other"));
}

TEST_F(LaunchSettings, NameDirectoriesForShardsThatCanHoldThem) {
  const auto launch = [](std::vector<std::string> flags,
                         const std::string& program = "true") {
    flags.insert(flags.begin(), "launch");
    flags.insert(
        flags.end(),
        {"--num_processes",
         "2",
         "--offload_directory_in_memory",
         "--dry_run",
         program});
    return run_tool(flags);
  };
  const std::string there = directory_.path(), missing = directory_ / "missing";
  const std::string complaint = missing +
      ", where shards are kept, must be a directory, but does not exist; "
      "create it\n";
  const auto fsdp = [&](const std::string& directory) {
    return launch(
        {"--use_fsdp",
         "--fsdp_offload_params",
         "true",
         "--fsdp_offload_directory",
         directory});
  };
  const auto deepspeed = [&](const std::string& directory) {
    return launch(
        {"--use_deepspeed",
         "--offload_optimizer_device",
         "nvme",
         "--offload_optimizer_nvme_path",
         directory});
  };
  for (const ToolResult& result : {fsdp(missing), deepspeed(missing)}) {
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.err, HasSubstr(complaint));
  }
  for (const ToolResult& result : {fsdp(there), deepspeed(there)})
    EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(LaunchSettings, AreCheckedWhateverTheNumberOfProcesses) {
  const std::vector<std::vector<std::string>> wrong{
      {"--tee", "7"},
      {"--cpu_affinity", "x"},
      {"--max_restarts", "-1"},
      {"--monitor_interval", "-1"},
      {"--main_process_port", "70000"},
      {"--machine_rank", "2"},
      {"--parallelism_config_cp_size", "0"},
      {"--parallelism_config_cp_backend", "other"},
      {"--fsdp_version", "3"},
      {"--zero_stage", "4"},
      {"--megatron_lm_hidden_dropout", "2"},
      {"--use_parallelism_config"}};
  for (const std::vector<std::string>& flags : wrong) {
    for (const std::string count : {"1", "4"}) {
      std::vector<std::string> words{"launch", "--num_processes", count};
      words.insert(words.end(), flags.begin(), flags.end());
      words.emplace_back("true");
      const ToolResult result = run_tool(words);
      EXPECT_EQ(result.code, 2) << flags.front() << " with " << count;
      EXPECT_NE(result.err, "");
    }
  }
}

TEST_F(LaunchSettings, LaunchWithoutADefaultFileThatCannotBeRead) {
  // A symlink loop, because permissions do not stop root.
  const auto home = directory_.path() / "home";
  std::filesystem::create_directory_symlink(home, home);
  const std::map<std::string, std::string> variables{{"HOME", home}};
  const ToolResult launched =
      run_tool({"launch", "--num_processes", "2", "true"}, variables);
  EXPECT_EQ(launched.code, 0);
  EXPECT_EQ(
      launched.err,
      "accelerate-cpp: warning: the default config file " + home.string() +
          "/.cache/huggingface/accelerate/default_config.yaml cannot be read: "
          "Too many levels of symbolic links; launching without it\n");
  EXPECT_EQ(run_tool({"launch", "--quiet", "true"}, variables).err, "");
  EXPECT_EQ(run_tool({"launch", "--cpu", "true"}, variables).err, "");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"config", "show"},
        {"config", "show", "--explain"},
        {"config", "default"},
        {"tpu-config", "--command", "ls"}}) {
    const ToolResult result = run_tool(command, variables);
    EXPECT_EQ(result.code, 2) << command.back();
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr("Too many levels of symbolic links"),
            HasSubstr("pass --config_file"),
            Not(HasSubstr("filesystem error"))));
  }
  EXPECT_THAT(
      run_tool({"env"}, variables).out,
      HasSubstr("cannot be read: Too many levels of symbolic links"));
}

TEST_F(LaunchSettings, NameTheFileThatCannotBeTaken) {
  const ToolResult device =
      run_tool({"launch", "--config_file", "/dev/zero", "true"});
  EXPECT_EQ(device.code, 2);
  EXPECT_THAT(device.err, HasSubstr("/dev/zero is longer than"));
  const std::string cyclic = write("a: &x\n  b: *x\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"launch", "--config_file", cyclic, "true"},
        {"config", "show", "--config_file", cyclic},
        {"config", "update", "--config_file", cyclic},
        {"to-fsdp2", "--config_file", cyclic, "--overwrite"}}) {
    const ToolResult result = run_tool(command);
    EXPECT_EQ(result.code, 2) << command.front();
    EXPECT_THAT(result.err, HasSubstr("alias that contains itself"));
  }
}

TEST(Tool, NamesTheCommandThatWasMeant) {
  const auto error_of = [](const std::vector<std::string>& words) {
    const ToolResult result = run_tool(words);
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  };
  EXPECT_EQ(
      error_of({"lanch"}),
      "accelerate-cpp: unknown command \"lanch\"; did you mean launch? See "
      "accelerate-cpp --help\n");
  EXPECT_THAT(
      error_of({"lanch", "--num_processes", "2", "./train"}),
      HasSubstr("did you mean launch?"));
  EXPECT_THAT(error_of({"estimate-memry"}), HasSubstr("estimate-memory?"));
  EXPECT_THAT(error_of({"merge_weights"}), HasSubstr("merge-weights?"));
  EXPECT_EQ(
      error_of({"config", "--config_file", "x.yaml", "shwo"}),
      "accelerate-cpp: unknown command \"shwo\"; did you mean show? See "
      "accelerate-cpp config --help\n");
  EXPECT_THAT(error_of({"checkpoint", "verfy", "."}), HasSubstr("verify?"));
  EXPECT_THAT(error_of({"frobnicate"}), HasSubstr("write one of config, env"));
  EXPECT_THAT(error_of({"frobnicate"}), Not(HasSubstr("help-pages")));
  EXPECT_THAT(error_of({}), Not(HasSubstr("unknown command")));
}

}  // namespace launch_settings_test
}  // namespace accelerate
