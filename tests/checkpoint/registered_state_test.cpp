#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include <fstream>

#include "checkpoint/resumable_training.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace registered_state_test {

namespace fs = std::filesystem;
using testing::automatic_checkpoints;
using testing::expect_error;
using testing::kAdam;
using testing::kAlone;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using Adam = testing::AdamTraining;

TEST(RegisterForCheckpointing, RestoresVariablesByName) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  const Accelerator accelerator(options);
  struct Values {
    int epoch = 3;
    std::uint8_t small = 200;
    std::int64_t large = std::int64_t{1} << 60;
    float ratio = 0.1F;
    double exact = 1e-300;
    bool flag = true;
    std::string name = "name";
    at::Tensor tensor = torch::arange(3);
    at::Tensor grows = torch::arange(4);
  } values;
  accelerator.register_for_checkpointing("epoch", values.epoch);
  accelerator.register_for_checkpointing("small", values.small);
  accelerator.register_for_checkpointing("large", values.large);
  accelerator.register_for_checkpointing("ratio", values.ratio);
  accelerator.register_for_checkpointing("exact", values.exact);
  accelerator.register_for_checkpointing("flag", values.flag);
  accelerator.register_for_checkpointing("name", values.name);
  accelerator.register_for_checkpointing("tensor", values.tensor);
  accelerator.register_for_checkpointing("grows", values.grows);
  static_cast<void>(accelerator.save_state(directory / "out"));
  const Values saved = values;
  const at::Tensor same_memory = values.tensor;
  values = {0, 0, 0, 0, 0, false, "", same_memory, torch::zeros({2})};
  same_memory.zero_();
  accelerator.load_state(directory / "out");
  EXPECT_EQ(values.epoch, saved.epoch);
  EXPECT_EQ(values.small, saved.small);
  EXPECT_EQ(values.large, saved.large);
  EXPECT_EQ(values.ratio, saved.ratio);
  EXPECT_EQ(values.exact, saved.exact);
  EXPECT_EQ(values.flag, saved.flag);
  EXPECT_EQ(values.name, saved.name);
  EXPECT_TRUE(same_memory.equal(torch::arange(3)));
  EXPECT_TRUE(values.grows.equal(torch::arange(4)));
}

TEST(RegisterForCheckpointing, RefusesValuesThatDoNotFit) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  int large = 300;
  const Accelerator one(options);
  one.register_for_checkpointing("count", large);
  static_cast<void>(one.save_state(directory / "out"));
  std::uint8_t small = 0;
  const Accelerator other(options);
  other.register_for_checkpointing("count", small);
  expect_error<CheckpointError>(
      [&] { other.load_state(directory / "out"); },
      "\"count\" was saved as 300");
  std::uint64_t huge = ~std::uint64_t{0};
  const Accelerator third(options);
  third.register_for_checkpointing("huge", huge);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(third.save_state(directory / "other")); },
      "the value of \"huge\" is above 2^63 - 1");
}

TEST(SaveState, RunsHooksOnEveryRankAndIncludesTheirFiles) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam training(automatic_checkpoints(world, directory.path()), kAdam, 1);
    const Accelerator& accelerator = training.accelerator();
    const HookHandle handle =
        accelerator.checkpoints().register_save_state_pre_hook(
            [&](SaveHookContext& context) {
              EXPECT_EQ(context.models.size(), 1u);
              context.save_weights[0] = false;
              const fs::path mine =
                  context.output_dir / ("of_" + std::to_string(*world.rank));
              fs::create_directory(mine);
              std::ofstream(mine / "notes.txt") << "rank " << *world.rank;
            });
    static_cast<void>(accelerator.save_state());
    int num_calls = 0;
    const HookHandle load =
        accelerator.checkpoints().register_load_state_pre_hook(
            [&](LoadHookContext& context) {
              ++num_calls;
              EXPECT_TRUE(fs::exists(context.input_dir / "of_1/notes.txt"));
              context.load_weights[0] = false;
            });
    accelerator.load_state({.verify = true});
    EXPECT_EQ(num_calls, 1);
    handle.remove();
    load.remove();
    static_cast<void>(accelerator.save_state());
    accelerator.load_state();
    EXPECT_EQ(num_calls, 1);
    accelerator.finish();
  });
  const fs::path base = directory / "checkpoints";
  EXPECT_FALSE(fs::exists(base / "checkpoint_0/model.safetensors"));
  EXPECT_TRUE(fs::exists(base / "checkpoint_1/model.safetensors"));
}

}  // namespace registered_state_test
}  // namespace accelerate
