// Directories that Python's Accelerate wrote. The oracle's topic "checkpoints"
// resumes training from them.
#include <accelerate/error.h>

#include "checkpoint/load/source.h"
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

TEST(PythonCheckpoint, IsRefusedIfEmpty) {
  const TemporaryDirectory directory;
  expect_error<CheckpointError>(
      [&] { static_cast<void>(open_checkpoint(directory.path(), 0, false)); },
      "has no manifest.json");
}

}  // namespace python_checkpoint_test
}  // namespace accelerate::detail
