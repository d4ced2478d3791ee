// checkpoint ls|verify|show|prune|convert, merge-weights and convert.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/safetensors.h>

#include "cli/tool.h"
#include "format/checkpoint/commit.h"
#include "format/tensors/tensor_writer.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace checkpoint_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::TemporaryDirectory;
using testing::ToolResult;

// Writes a complete checkpoint with one weight of `value` in two boxes.
void make_checkpoint(const fs::path& target, float value) {
  const auto disk = detail::make_file_system();
  detail::PendingCheckpoint pending(disk, target);
  const std::vector<float> values(6, value);
  std::vector<detail::FileToWrite> files;
  detail::Manifest manifest;
  manifest.writer = "test";
  manifest.created = "2026-11-21T14:00:00Z";
  detail::SavedTensor& saved = manifest.sections["model"]["weight"];
  saved.shape = {4, 3};
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::string name =
        "model-0000" + std::to_string(i + 1) + "-of-00002.safetensors";
    detail::TensorToWrite tensor{safetensors::Dtype::F32, {2, 3}, {}};
    tensor.bytes.num_bytes = 24;
    tensor.bytes.data = reinterpret_cast<const std::byte*>(values.data());
    files.push_back({pending.directory() / name, {{"weight", tensor}}, {}});
    saved.boxes.push_back({name, {{2 * i, 0}, {2, 3}}});
  }
  const auto records = detail::write_tensor_files(*disk, files);
  for (std::size_t i = 0; i < 2; ++i) {
    manifest.files[files[i].path.filename().string()] = records[i];
  }
  pending.commit(manifest);
}

class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      make_checkpoint(
          base_ / ("checkpoint_" + std::to_string(i)), static_cast<float>(i));
    }
  }
  TemporaryDirectory directory_;
  fs::path base_ = directory_ / "run/checkpoints";
};

TEST_F(CheckpointCommand, ListsCheckpoints) {
  fs::create_directory(base_ / "checkpoint_9");
  fs::create_directory(base_ / "notes");
  const ToolResult result = run_tool({"checkpoint", "ls", directory_ / "run"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("checkpoint_2"));
  EXPECT_THAT(result.out, HasSubstr("1 process"));
  EXPECT_THAT(result.out, HasSubstr("INCOMPLETE"));
  EXPECT_THAT(result.out, Not(HasSubstr("notes")));
  EXPECT_EQ(run_tool({"checkpoint", "ls", "/nowhere"}).code, 2);
}

TEST_F(CheckpointCommand, FindsDamage) {
  EXPECT_EQ(run_tool({"checkpoint", "verify", directory_ / "run"}).code, 0);
  {
    std::fstream file(
        base_ / "checkpoint_1/model-00002-of-00002.safetensors",
        std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('!');
  }
  const ToolResult result =
      run_tool({"checkpoint", "verify", directory_ / "run"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("checkpoint_0: good"));
  EXPECT_THAT(result.out, HasSubstr("checkpoint_1: DAMAGED"));
  EXPECT_THAT(result.out, HasSubstr("model-00002-of-00002.safetensors has"));
}

TEST_F(CheckpointCommand, ShowsTensorsAndDifferences) {
  const ToolResult newest =
      run_tool({"checkpoint", "show", directory_ / "run"});
  EXPECT_EQ(newest.code, 0);
  EXPECT_THAT(newest.out, HasSubstr("checkpoint_2"));
  EXPECT_THAT(newest.out, HasSubstr("weight  F32   [4, 3]"));
  const ToolResult differ = run_tool(
      {"checkpoint",
       "show",
       base_ / "checkpoint_0",
       "--diff",
       base_ / "checkpoint_1"});
  EXPECT_EQ(differ.code, 1);
  EXPECT_THAT(differ.out, HasSubstr("~ model: weight  values differ"));
  EXPECT_EQ(
      run_tool({"checkpoint",
                "show",
                base_ / "checkpoint_0",
                "--diff",
                base_ / "checkpoint_0"})
          .code,
      0);
}

TEST_F(CheckpointCommand, PrunesTheOldestAndLeftoversOfFailedSaves) {
  fs::create_directory(base_ / ".checkpoint_3.saving-1-2");
  const ToolResult dry = run_tool(
      {"checkpoint", "prune", directory_ / "run", "--keep", "1", "--dry_run"});
  EXPECT_THAT(dry.out, HasSubstr("would delete"));
  EXPECT_TRUE(fs::exists(base_ / "checkpoint_0"));
  EXPECT_EQ(
      run_tool({"checkpoint", "prune", directory_ / "run", "--keep", "1"}).code,
      0);
  EXPECT_FALSE(fs::exists(base_ / "checkpoint_1"));
  EXPECT_TRUE(fs::exists(base_ / "checkpoint_2"));
  EXPECT_FALSE(fs::exists(base_ / ".checkpoint_3.saving-1-2"));
}

// Writes a checkpoint of one rank with a sharded model, an optimizer and an
// object.
void make_full_checkpoint(const fs::path& target) {
  const auto disk = detail::make_file_system();
  detail::PendingCheckpoint pending(disk, target);
  detail::Manifest manifest;
  manifest.writer = "test";
  manifest.created = "2026-11-21T14:00:00Z";
  const std::vector<float> values(6, 1.5F);
  std::vector<detail::FileToWrite> files;
  const auto add = [&](const std::string& section,
                       const std::string& file,
                       const std::string& tensor,
                       std::uint64_t first_row) {
    detail::TensorToWrite contents{safetensors::Dtype::F32, {2, 3}, {}};
    contents.bytes.num_bytes = 24;
    contents.bytes.data = reinterpret_cast<const std::byte*>(values.data());
    files.push_back({pending.directory() / file, {{tensor, contents}}, {}});
    detail::SavedTensor& saved = manifest.sections[section][tensor];
    saved.shape = {section == "model" ? 4U : 2U, 3};
    saved.boxes.push_back({file, {{first_row, 0}, {2, 3}}});
  };
  add("model", "model-00001-of-00002.safetensors", "weight", 0);
  add("model", "model-00002-of-00002.safetensors", "weight", 2);
  add("optimizer", "optimizer.safetensors", "weight/momentum_buffer", 0);
  const auto add_state = [&](const std::string& file, const std::string& json) {
    files.push_back({pending.directory() / file, {}, {{"state", json}}});
  };
  add_state(
      "state.safetensors",
      R"({"loaders":{"states":[{"position":3}]},
          "objects":{"states":[{"count":7}]},
          "optimizers":{"states":[{"algorithm":"SGD",
            "groups":{"states":[{"options":{"state":{"lr":0.1,"momentum":0.9}},
                                 "parameters":{"state":{"weight":0}}}]},
            "parameters":{"state":{"weight":{"state":{"momentum_buffer":
              {"state":{"tensor of the part":"weight/momentum_buffer"}}}}}}}]},
          "schedulers":{"states":[]},
          "step":{"state":{"micro_step":5,"serial":5}}})");
  add_state(
      "rank-00000.safetensors",
      R"({"loaders":{"states":[{"position":3}]},"random":{"state":{}},
          "strategies":{"states":[{"replicate":{"state":{}}}]}})");
  const auto records = detail::write_tensor_files(*disk, files);
  for (std::size_t i = 0; i < files.size(); ++i) {
    manifest.files[files[i].path.filename().string()] = records[i];
  }
  pending.commit(manifest);
}

TEST_F(CheckpointCommand, ConvertsToTheLayoutOfAccelerate) {
  make_full_checkpoint(directory_ / "full");
  const fs::path out = directory_ / "python";
  const ToolResult result =
      run_tool({"checkpoint", "convert", directory_ / "full", out});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("left out: positions of loaders"));
  EXPECT_THAT(result.out, HasSubstr("left out: the state of \"replicate\""));
  for (const char* name :
       {"model.safetensors",
        "optimizer.bin",
        "custom_checkpoint_0.pkl",
        "random_states_0.pkl"}) {
    EXPECT_TRUE(fs::exists(out / name)) << name;
  }
  EXPECT_THAT(
      run_tool({"checkpoint", "show", out}).out,
      HasSubstr("weight  F32   [4, 3]"));
  EXPECT_THAT(
      run_tool({"checkpoint", "show", out / "optimizer.bin"}).out,
      HasSubstr("state.0.momentum_buffer"));
  const ToolResult again =
      run_tool({"checkpoint", "convert", directory_ / "full", out});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("give the converted checkpoint a name"));
  EXPECT_THAT(
      run_tool({"checkpoint", "convert", out, directory_ / "third"}).err,
      HasSubstr("has the layout of Accelerate already"));
  const fs::path unsafe = directory_ / "unsafe";
  EXPECT_EQ(
      run_tool({"checkpoint",
                "convert",
                directory_ / "full",
                unsafe,
                "--unsafe_serialization"})
          .code,
      0);
  EXPECT_TRUE(fs::exists(unsafe / "pytorch_model.bin"));
}

TEST_F(CheckpointCommand, MergesAndConverts) {
  const fs::path merged = directory_ / "merged";
  const ToolResult merging =
      run_tool({"merge-weights", base_ / "checkpoint_1", merged});
  ASSERT_EQ(merging.code, 0);
  // A progress bar appears only if merging takes long.
  EXPECT_EQ(merging.err, "");
  ASSERT_TRUE(fs::exists(merged / "model.safetensors"));
  ASSERT_EQ(
      run_tool(
          {"convert", merged / "model.safetensors", directory_ / "model.bin"})
          .code,
      0);
  const ToolResult same = run_tool(
      {"checkpoint",
       "show",
       base_ / "checkpoint_1",
       "--diff",
       directory_ / "model.bin"});
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("1 tensors equal, 0 different"));
  const ToolResult unclear =
      run_tool({"convert", directory_ / "model.bin", directory_ / "model.xyz"});
  EXPECT_EQ(unclear.code, 2);
  EXPECT_THAT(unclear.err, HasSubstr("unknown extension"));
  const ToolResult missing =
      run_tool({"merge-weights", directory_ / "run", merged});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("does not hold a sharded checkpoint"));
}

TEST_F(CheckpointCommand, RemovesTheCheckpointOnlyIfTheOutputIsElsewhere) {
  const fs::path checkpoint = base_ / "checkpoint_1";
  const auto merge = [&](const fs::path& output) {
    return run_tool(
        {"merge-weights", checkpoint, output, "--remove_checkpoint_dir"});
  };
  fs::create_symlink(checkpoint, directory_ / "link");
  for (const fs::path& inside :
       {checkpoint,
        checkpoint / "merged",
        checkpoint / "",
        base_ / "checkpoint_2/../checkpoint_1/merged",
        directory_ / "link" / "merged"}) {
    const ToolResult result = merge(inside);
    EXPECT_EQ(result.code, 2) << inside;
    EXPECT_THAT(result.err, HasSubstr("is inside the checkpoint"));
    EXPECT_FALSE(fs::exists(checkpoint / "merged"));
    EXPECT_FALSE(fs::exists(checkpoint / "model.safetensors"));
  }
  // A sibling whose name starts with the checkpoint's name.
  const ToolResult beside = merge(base_ / "checkpoint_1x");
  EXPECT_EQ(beside.code, 0) << beside.err;
  EXPECT_TRUE(fs::exists(base_ / "checkpoint_1x/model.safetensors"));
  EXPECT_FALSE(fs::exists(checkpoint));
}

TEST_F(CheckpointCommand, PrintsNamesAsText) {
  const fs::path file = directory_ / "x.safetensors";
  safetensors::Writer writer(
      file, {{"a\x1b]0;b\a\nmodel: 1 tensors", safetensors::Dtype::U8, {1}}});
  writer.write(std::vector<std::byte>(1));
  writer.finish();
  const ToolResult shown = run_tool({"checkpoint", "show", file});
  EXPECT_THAT(
      shown.out,
      HasSubstr("  a\\x1b]0;b\\x07\\nmodel: 1 tensors  U8    [1]\n"));
  EXPECT_THAT(shown.out, Not(HasSubstr("\x1b")));
  fs::create_directory(base_ / "checkpoint_\x1b[2J7");
  const ToolResult listed = run_tool({"checkpoint", "ls", directory_ / "run"});
  EXPECT_THAT(listed.out, HasSubstr("checkpoint_\\x1b[2J7"));
  EXPECT_THAT(listed.out, Not(HasSubstr("\x1b")));
  const ToolResult missing =
      run_tool({"checkpoint", "show", directory_ / "\x1b[2J"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, Not(HasSubstr("\x1b")));
}

}  // namespace checkpoint_test
}  // namespace accelerate
