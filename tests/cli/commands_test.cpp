#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/safetensors.h>

#include "base/files/files.h"
#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace commands_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::ToolResult;

class ConfigCommand : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    std::ofstream(directory_ / "config.yaml") << text;
    return directory_.path() / "config.yaml";
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(ConfigCommand, DefaultIsWrittenOnceAndWhereAccelerateLooks) {
  const std::map<std::string, std::string> home{
      {"HF_HOME", directory_.path() / "hf"}};
  const ToolResult first =
      run_tool({"config", "default", "--mixed_precision", "bf16"}, home);
  EXPECT_EQ(first.code, 0) << first.err;
  const auto file = directory_.path() / "hf/accelerate/default_config.yaml";
  EXPECT_THAT(detail::read_file(file), HasSubstr("mixed_precision: bf16\n"));
  const ToolResult second = run_tool({"config", "default"}, home);
  EXPECT_EQ(second.code, 0);
  EXPECT_THAT(second.out, HasSubstr("already exists"));
  EXPECT_THAT(detail::read_file(file), HasSubstr("mixed_precision: bf16\n"));
  // `launch` accepts the file.
  EXPECT_THAT(
      run_tool({"launch", "--dry_run", "true"}, home).out,
      HasSubstr("mixed_precision = bf16  (file "));
}

TEST_F(ConfigCommand, UpdateKeepsComments) {
  const auto file = write("# mine\ndistributed_type: MULTI_CPU # two\n");
  EXPECT_EQ(run_tool({"config", "update", "--config_file", file}).code, 0);
  EXPECT_THAT(
      detail::read_file(file),
      AllOf(
          HasSubstr("# mine\ndistributed_type: MULTI_CPU # two\n"),
          HasSubstr("num_machines: 1\n")));
}

TEST_F(ConfigCommand, ShowExplainsWhereValuesComeFrom) {
  const auto file =
      write("distributed_type: MULTI_CPU\nnum_processes: 2\ndebug: true\n");
  EXPECT_THAT(
      run_tool({"config", "show", "--config_file", file}).out,
      AllOf(HasSubstr("num_processes: 2\n"), HasSubstr("debug: true\n")));
  EXPECT_THAT(
      run_tool(
          {"config", "show", "--explain", "--config_file", file},
          {{"ACCELERATE_MIXED_PRECISION", "bf16"}})
          .out,
      AllOf(
          HasSubstr("num_processes = 2  (file "),
          HasSubstr("mixed_precision = bf16  (environment variable "
                    "ACCELERATE_MIXED_PRECISION)"),
          HasSubstr("max_restarts = 0  (default)")));
}

TEST_F(ConfigCommand, ShowExplainsWhatADeepSpeedFileAsksFor) {
  const std::string json = directory_.path() / "zero.json";
  std::ofstream(json) << R"({
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
      "stage": 3,
      "overlap_comm": true,
      "offload_optimizer": {"device": "cpu", "pin_memory": true}
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}
  })";
  const auto file = write(
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
      "  deepspeed_config_file: " +
      json + "\n");
  const ToolResult result = run_tool(
      {"config", "show", "--explain", "--config_file", file},
      {{"ACCELERATE_MIXED_PRECISION", "bf16"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr(
          "which asks for\n"
          "  engine              DeepSpeed's settings\n"
          "  degrees             replicate the ranks that are left, shard all "
          "ranks that the other degrees leave\n"
          "  sharding            optimizer state, gradients and parameters; "
          "parameters are resharded after each use (ZeRO stage 3); shards stay "
          "in host memory; only rank 0 makes initial values\n"
          "  wrap policy         elements of the outermost Sequentials and "
          "ModuleLists\n"
          "  recomputation       none\n"
          "  step                gradients accumulate over 8 micro-steps, "
          "clipped to a norm of 1\n"
          "  precision           autocast to bf16; parameters gathered in "
          "bf16; "
          "gradients reduced in bf16\n"
          "  optimizer           AdamW {\"lr\":0.0003}, made by "
          "optimizer_from_deepspeed()\n"
          "  scheduler           the program's\n"
          "  ignored             "
          "zero_optimization.offload_optimizer.pin_memory (DeepSpeed file " +
          json +
          "): no counterpart here; memory that devices copy from is pinned "
          "anyway\n"
          "  ignored             zero_optimization.overlap_comm (DeepSpeed "
          "file " +
          json + "): no counterpart here\n"));
}

TEST_F(ConfigCommand, ShowExplainsWhatIsWrongWithASettingOfFSDP) {
  const auto file = write(
      "distributed_type: FSDP\nfsdp_config:\n"
      "  fsdp_sharding_strategy: HYBRID_SHARD\n"
      "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
      "  fsdp_min_num_params: 1000\n");
  const std::vector<std::string> command{
      "config", "show", "--explain", "--config_file", file};
  EXPECT_THAT(
      run_tool(command).out,
      AllOf(
          HasSubstr("  engine              FSDP's settings\n"),
          HasSubstr("shard the ranks of each node"),
          HasSubstr("modules with at least 1000 parameters")));
  EXPECT_THAT(
      run_tool(command, {{"ACCELERATE_USE_DEEPSPEED", "true"}}).out,
      HasSubstr("  error               [parallel] sharding was requested in "
                "FSDP's settings and in DeepSpeed's"));
}

TEST_F(ConfigCommand, NeedsAnswers) {
  const auto file = directory_.path() / "new.yaml";
  const ToolResult result = run_tool({"config", "--config_file", file});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("nothing was written"));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(ConfigCommand, SchemaKnowsEveryKey) {
  const auto schema = nlohmann::json::parse(run_tool({"config", "schema"}).out);
  const auto& properties = schema.at("properties");
  EXPECT_EQ(properties.at("num_processes").at("type"), "integer");
  EXPECT_FALSE(properties.contains("use_fsdp"));
  EXPECT_TRUE(properties.at("fsdp_config")
                  .at("properties")
                  .contains("fsdp_offload_params"));
}

TEST_F(ConfigCommand, ToFsdp2ReportsWhatItLeavesOut) {
  const auto file = write(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n"
      "  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
      "  fsdp_backward_prefetch: BACKWARD_PRE\n");
  const ToolResult refused = run_tool({"to-fsdp2", "--config_file", file});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--output_file FILE, or --overwrite"));
  const ToolResult done =
      run_tool({"to-fsdp2", "--config_file", file, "--overwrite"});
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.err, HasSubstr("fsdp_backward_prefetch is left out"));
  EXPECT_THAT(
      detail::read_file(file),
      HasSubstr("  fsdp_reshard_after_forward: false\n"));
}

TEST_F(ConfigCommand, TpuConfigPrintsItsCommand) {
  const auto file = write(
      "distributed_type: XLA\ntpu_name: pod\ntpu_zone: z\ncommands: [ls, "
      "pwd]\n");
  EXPECT_EQ(
      run_tool({"tpu-config", "--config_file", file}).out,
      "gcloud compute tpus tpu-vm ssh pod --zone z --command \"cd /usr/share; "
      "ls; pwd\" --worker all\n");
  EXPECT_EQ(
      run_tool({"tpu-config",
                "--tpu_name",
                "a",
                "--tpu-zone",
                "b",
                "--use_alpha",
                "--install_accelerate",
                "--command",
                "echo 1",
                "--command",
                "echo 2",
                "--debug"})
          .out,
      "gcloud alpha compute tpus tpu-vm ssh a --zone b --command \"cd "
      "/usr/share; pip install accelerate -U; echo 1; echo 2\" --worker all\n");
  EXPECT_EQ(run_tool({"tpu-config"}).code, 2);
}

TEST(EstimateMemory, CountsTheBytesOfBert) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "config.json")
      << R"({"model_type": "bert", "vocab_size": 28996, "hidden_size": 768,
             "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072, "max_position_embeddings": 512,
             "type_vocab_size": 2})";
  const ToolResult result = run_tool(
      {"estimate-memory",
       directory.path(),
       "--dtypes",
       "float32",
       "--sequence_length",
       "128",
       "--shards",
       "4"});
  EXPECT_EQ(result.code, 0) << result.err;
  // Accelerate reports 433249280 and 90669056 bytes for bert-base-cased.
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("413.18 MB"),
          HasSubstr("86.47 MB"),
          HasSubstr("one of 4 devices"),
          HasSubstr("activations")));
}

TEST(EstimateMemory, FitsOnlyWhatItsFlagsAllow) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "config.json")
      << R"({"model_type": "bert", "vocab_size": 28996, "hidden_size": 768,
             "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072, "max_position_embeddings": 512,
             "type_vocab_size": 2})";
  const auto fits = [&](std::vector<std::string> flags) {
    std::vector<std::string> all{
        "estimate-memory",
        directory.path().string(),
        "--sequence_length",
        "128",
        "--gpus",
        "8",
        "--fits",
        "16GB"};
    all.insert(all.end(), flags.begin(), flags.end());
    const ToolResult result = run_tool(all);
    const auto begin = result.out.find("fits, cheapest first");
    EXPECT_NE(begin, std::string::npos) << result.out << result.err;
    return result.out.substr(std::min(begin, result.out.size()));
  };
  EXPECT_THAT(
      fits({}),
      AllOf(
          HasSubstr("replicated"),
          HasSubstr("ZeRO-1 over 8"),
          HasSubstr("bf16")));
  EXPECT_THAT(
      fits({"--shards", "4"}),
      AllOf(
          HasSubstr("hybrid shard over 4"),
          Not(HasSubstr("over 8")),
          Not(HasSubstr("replicated"))));
  EXPECT_THAT(
      fits({"--activation_checkpointing", "--mixed_precision", "bf16"}),
      AllOf(HasSubstr(" yes "), Not(HasSubstr(" no "))));
  EXPECT_THAT(
      fits({"--mixed_precision", "fp8"}),
      AllOf(HasSubstr("fp8"), Not(HasSubstr("bf16"))));
  EXPECT_THAT(fits({"--tensor", "2", "--pipeline", "2"}), HasSubstr("over 2"));
}

// Returns what the tool shows on a terminal: standard output and error.
std::string shown_on_terminal(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ACCELERATE_TOOL);
  std::vector<char*> words;
  for (std::string& each : arguments) words.push_back(each.data());
  words.push_back(nullptr);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  std::string shown;
  std::array<char, 4096> bytes;
  // The last read fails because no process has the terminal open.
  for (ssize_t size = 0;
       (size = ::read(terminal, bytes.data(), bytes.size())) > 0;)
    shown.append(bytes.data(), static_cast<std::size_t>(size));
  ::close(terminal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << shown;
  return shown;
}

TEST(EstimateMemory, ShowsHowManyFilesOfAModelItHasRead) {
  const testing::TemporaryDirectory directory;
  nlohmann::json index;
  for (const char* name : {"a", "b", "c"}) {
    const std::string file = std::string(name) + ".safetensors";
    safetensors::Writer writer(
        directory / file, {{name, safetensors::Dtype::U8, {4}}});
    writer.write(std::vector<std::byte>(4));
    writer.finish();
    index["weight_map"][name] = file;
  }
  std::ofstream(directory / "model.safetensors.index.json") << index.dump();
  const std::string shown =
      shown_on_terminal({"estimate-memory", directory.path().string()});
  const auto bar = shown.find("reading:");
  ASSERT_NE(bar, std::string::npos) << shown;
  EXPECT_LT(shown.find("0/3", bar), shown.find("float32")) << shown;
  // A pipe gets no progress bar.
  const ToolResult piped =
      run_tool({"estimate-memory", directory.path().string()});
  EXPECT_EQ(piped.err, "");
  EXPECT_THAT(piped.out, Not(HasSubstr("reading")));
}

TEST(EstimateMemory, NamesModelsThatItCannotRead) {
  EXPECT_THAT(
      run_tool({"estimate-memory", "bert-base-cased"}).err,
      HasSubstr("nothing is downloaded"));
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "config.json") << R"({"model_type": "mamba"})";
  EXPECT_THAT(
      run_tool({"estimate-memory", directory.path()}).err,
      HasSubstr("but must be bert, gpt2, llama"));
}

TEST(Completion, ScriptsAreValidInTheirShells) {
  const ToolResult bash = run_tool({"completion", "bash"});
  EXPECT_EQ(bash.code, 0);
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "script") << bash.out;
  const std::string check = "bash -n " + (directory / "script").string() +
      " && bash -c 'source " + (directory / "script").string() +
      "; COMP_WORDS=(accelerate-cpp launch --num_p); COMP_CWORD=2; "
      "_accelerate_cpp; printf \"%s\\n\" \"${COMPREPLY[@]}\"' > " +
      (directory / "found").string();
  EXPECT_EQ(std::system(check.c_str()), 0);
  EXPECT_EQ(detail::read_file(directory / "found"), "--num_processes\n");
  for (const char* const shell : {"zsh", "fish"}) {
    EXPECT_THAT(
        run_tool({"completion", shell}).out, HasSubstr("num_processes"));
  }
  EXPECT_EQ(run_tool({"completion", "tcsh"}).code, 2);
}

TEST(Manual, HasAPageForEveryCommand) {
  EXPECT_THAT(
      run_tool({"man"}).out,
      AllOf(HasSubstr(".TH ACCELERATE-CPP 1"), HasSubstr("launch")));
  EXPECT_THAT(
      run_tool({"man", "launch"}).out, HasSubstr("\\-\\-num_processes"));
  EXPECT_EQ(run_tool({"man", "nothing"}).code, 2);
}

TEST(Env, ReportsVersionsAndSettings) {
  const ToolResult result =
      run_tool({"env"}, {{"ACCELERATE_MIXED_PRECISION", "bf16"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("- accelerate.cpp: 0."),
          HasSubstr("- LibTorch: 2."),
          HasSubstr("- Memory: "),
          // Its version, or that it is not here.
          HasSubstr("\n- NCCL"),
          HasSubstr("- mixed_precision: bf16 (environment variable")));
}

TEST(Env, SaysWhereNcclIsNot) {
  EXPECT_THAT(
      run_tool({"env"}, {{"ACCELERATE_NCCL_LIBRARY", "/no/libnccl.so"}}).out,
      HasSubstr("NCCL could not be opened; it was looked for as "
                "\"/no/libnccl.so\" ("));
}

TEST(SelfTest, PassesOnTwoRanks) {
  const ToolResult result = run_tool({"test", "--cpu", "--num_processes", "2"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("[0] 2 ranks, device cpu, precision no, connected by "),
          HasSubstr("\n[0] NCCL"),
          HasSubstr("[0] training as in one process: ok"),
          HasSubstr("[0] checkpoint and back: ok"),
          HasSubstr("All is well")));
}

TEST(HelpPages, AreTheDocs) {
  EXPECT_EQ(run_tool({"help-pages"}).out, detail::read_file(COMMAND_LINE_PAGE));
  EXPECT_EQ(
      run_tool({"config", "schema"}).out, detail::read_file(CONFIG_SCHEMA));
}

}  // namespace commands_test
}  // namespace accelerate
