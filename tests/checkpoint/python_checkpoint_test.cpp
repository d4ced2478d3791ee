// Directories written by Python's Accelerate. The oracle topic "checkpoints"
// resumes training from them.
#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "checkpoint/load/source.h"
#include "format/torch/torch_writer.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace python_checkpoint_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryDirectory;

const fs::path kFixtures = ORACLE_FIXTURES;

TEST(PythonCheckpoint, ReadsTheModelFromFsdpShards) {
  const TemporaryDirectory directory;
  fs::copy(
      kFixtures / "sharded/0001/pytorch_model_fsdp_0",
      directory / "pytorch_model_fsdp_0");
  fs::copy(
      kFixtures /
          "checkpoints/0001/checkpoints/checkpoint_0/random_states_0.pkl",
      directory / "random_states_0.pkl");
  const CheckpointSource source = open_checkpoint(directory.path(), 0, false);
  EXPECT_TRUE(source.is_python);
  EXPECT_EQ(source.num_processes, 1);
  ASSERT_EQ(source.sections.at("model").size(), 6u);
  EXPECT_EQ(
      source.sections.at("model").at("head.weight").shape,
      (safetensors::Shape{7, 5}));
  EXPECT_TRUE(source.rank_state->get<StateDict>("random").contains("cpu"));
}

TEST(PythonCheckpoint, NumbersOptimizersAndNamesObjects) {
  const CheckpointSource source = open_checkpoint(
      kFixtures / "checkpoints/0001/checkpoints/checkpoint_0", 5, false);
  EXPECT_FALSE(source.rank_state);
  const auto optimizers =
      source.state.get<std::vector<StateDict>>("optimizers");
  ASSERT_EQ(optimizers.size(), 1u);
  const auto first =
      optimizers[0].get<StateDict>("parameters").get<StateDict>("0");
  EXPECT_EQ(first.get<std::int64_t>("step"), 27);
  EXPECT_TRUE(source.sections.at("optimizer").contains("0/exp_avg"));
  const auto objects = source.state.get<std::vector<StateDict>>("objects");
  ASSERT_EQ(objects.size(), 1u);
  EXPECT_EQ(objects[0].get<std::int64_t>("count"), 27);
  EXPECT_EQ(objects[0].get<std::string>("name"), "counter");
  EXPECT_EQ(
      objects[0].get<at::Tensor>("history").sizes(), (at::IntArrayRef{3}));
}

TorchValue text(const std::string& value) { return {value}; }

TorchValue dict(
    const std::vector<std::pair<std::string, TorchValue>>& entries) {
  TorchValue::Dict made;
  for (const auto& [key, value] : entries) made.add(text(key), value);
  return {std::move(made)};
}

// Opens a checkpoint with the given file; the random states make it a
// checkpoint.
CheckpointSource open_with(
    const TemporaryDirectory& directory,
    const std::string& name,
    const TorchValue& value) {
  const auto disk = make_file_system();
  write_torch_file(*disk, directory / "random_states_0.pkl", dict({}));
  write_torch_file(*disk, directory / name, value);
  return open_checkpoint(directory.path(), 0, false);
}

TEST(PythonCheckpoint, ReadsOptimizersThatWereMadeFromNamedParameters) {
  const TemporaryDirectory directory;
  const TorchValue group = dict(
      {{"param_names", {TorchValue::List{text("0.weight"), text("0.bias")}}},
       {"lr", {0.5}},
       {"betas", {TorchValue::Tuple{{{0.8}, {0.9}}}}},
       {"foreach", {}},
       {"params", {TorchValue::List{{std::int64_t{0}}, {std::int64_t{1}}}}}});
  const CheckpointSource source = open_with(
      directory,
      "optimizer.bin",
      dict({{"state", dict({})}, {"param_groups", {TorchValue::List{group}}}}));
  const auto optimizers =
      source.state.get<std::vector<StateDict>>("optimizers");
  ASSERT_EQ(optimizers.size(), 1u);
  const auto groups = optimizers[0].get<std::vector<StateDict>>("groups");
  ASSERT_EQ(groups.size(), 1u);
  const auto options = groups[0].get<StateDict>("options");
  EXPECT_EQ(options.values().size(), 2u);
  EXPECT_EQ(options.get<double>("lr"), 0.5);
  EXPECT_EQ(
      options.get<std::vector<double>>("betas"),
      (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(groups[0].get<StateDict>("parameters").get<std::int64_t>("1"), 1);
}

TEST(PythonCheckpoint, GivesWhatStatesCannotHoldAsDocumented) {
  const TemporaryDirectory directory;
  TorchValue::Dict object;
  object.add(text("nothing"), {});
  object.add(text("pair"), {TorchValue::Tuple{{{0.5}, {std::int64_t{2}}}}});
  object.add({std::int64_t{3}}, {true});
  object.add(text("names"), {TorchValue::List{text("a"), text("b")}});
  const CheckpointSource source =
      open_with(directory, "custom_checkpoint_0.pkl", {std::move(object)});
  const auto objects = source.state.get<std::vector<StateDict>>("objects");
  ASSERT_EQ(objects.size(), 1u);
  EXPECT_FALSE(objects[0].contains("nothing"));
  EXPECT_EQ(
      objects[0].get<std::vector<double>>("pair"),
      (std::vector<double>{0.5, 2.0}));
  EXPECT_TRUE(objects[0].get<bool>("3"));
  const auto names = objects[0].get<std::vector<StateDict>>("names");
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0].get<std::string>("0"), "a");
  EXPECT_EQ(names[1].get<std::string>("1"), "b");
}

TEST(PythonCheckpoint, ReadsThePlaceOfAScheduleInItsCycle) {
  const TemporaryDirectory directory;
  const CheckpointSource source = open_with(
      directory,
      "scheduler.bin",
      dict(
          {{"base_lrs", {TorchValue::List{{0.5}}}},
           {"last_epoch", {std::int64_t{10}}},
           {"_last_lr", {TorchValue::List{{0.25}}}},
           {"T_0", {std::int64_t{7}}},
           {"T_i", {std::int64_t{14}}},
           {"T_cur", {3.5}}}));
  const auto state =
      source.state.get<std::vector<StateDict>>("schedulers").at(0);
  EXPECT_EQ(state.get<std::int64_t>("step"), 10);
  EXPECT_EQ(state.get<double>("T_cur"), 3.5);
  EXPECT_EQ(state.get<double>("T_i"), 14);
}

// PyTorch's ChainedScheduler has no last_epoch and no base_lrs.
TEST(PythonCheckpoint, ReadsTheStepOfAChainedScheduleFromItsSchedules) {
  const TemporaryDirectory directory;
  const auto inner = [](double lr) {
    return dict(
        {{"base_lrs", {TorchValue::List{{0.5}}}},
         {"last_epoch", {std::int64_t{7}}},
         {"_last_lr", {TorchValue::List{{lr}}}}});
  };
  const CheckpointSource source = open_with(
      directory,
      "scheduler.bin",
      dict(
          {{"_last_lr", {TorchValue::List{{0.125}}}},
           {"_schedulers", {TorchValue::List{inner(0.25), inner(0.125)}}}}));
  const auto schedulers =
      source.state.get<std::vector<StateDict>>("schedulers");
  ASSERT_EQ(schedulers.size(), 1u);
  EXPECT_EQ(schedulers[0].get<std::int64_t>("step"), 7);
  EXPECT_EQ(
      schedulers[0].get<std::vector<double>>("last_lrs"),
      std::vector<double>{0.125});
  const auto parts = schedulers[0].get<std::vector<StateDict>>("parts");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(
      parts[0].get<std::vector<double>>("last_lrs"), std::vector<double>{0.25});
}

TEST(PythonCheckpoint, IsRefusedIfEmpty) {
  const TemporaryDirectory directory;
  expect_error<CheckpointError>(
      [&] { static_cast<void>(open_checkpoint(directory.path(), 0, false)); },
      "has no manifest.json");
}

}  // namespace python_checkpoint_test
}  // namespace accelerate::detail
