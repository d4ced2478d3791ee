#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace distributed_facts_test {

using testing::run_on_ranks;

FullyShardedDataParallelOptions version(int number) {
  return {.fsdp_version = number};
}

TEST(DistributedType, NamesTheEngine) {
  const auto expect = [](const ParallelOptions& parallel,
                         DistributedType type,
                         std::string_view name,
                         bool is_fsdp2 = false) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator({.parallel = parallel, .world = world});
      EXPECT_EQ(accelerator.state().distributed_type, type);
      EXPECT_EQ(name_of(accelerator.state().distributed_type), name);
      EXPECT_EQ(accelerator.state().is_fsdp2, is_fsdp2);
      EXPECT_TRUE(accelerator.state().use_distributed());
      EXPECT_FALSE(accelerator.state().multi_device());
      EXPECT_EQ(
          accelerator.state().deepspeed_plugin.has_value(),
          type == DistributedType::deepspeed);
    });
  };
  expect({}, DistributedType::multi_cpu, "MULTI_CPU");
  expect({.shard = 2}, DistributedType::fsdp, "FSDP");
  expect({.fully_sharded = version(1)}, DistributedType::fsdp, "FSDP");
  expect({.fully_sharded = version(2)}, DistributedType::fsdp, "FSDP", true);
  expect(
      {.deepspeed = DeepSpeedOptions()},
      DistributedType::deepspeed,
      "DEEPSPEED");
  expect(
      {.megatron_lm = MegatronLMOptions()},
      DistributedType::megatron_lm,
      "MEGATRON_LM");
}

TEST(DistributedType, IsNoOnOneProcess) {
  const Accelerator accelerator(
      {.parallel = {.fully_sharded = version(2)},
       .world = {.rank = 0, .size = 1, .device = at::kCPU}});
  EXPECT_EQ(accelerator.state().distributed_type, DistributedType::no);
  EXPECT_EQ(name_of(DistributedType::no), "NO");
  EXPECT_FALSE(accelerator.state().use_distributed());
  EXPECT_FALSE(accelerator.state().multi_device());
  EXPECT_FALSE(accelerator.state().is_fsdp2);
  EXPECT_TRUE(accelerator.state().should_save_model);
  EXPECT_FALSE(accelerator.state().deepspeed_plugin);
  EXPECT_EQ(
      accelerator.state().text(),
      "Distributed environment: DistributedType.NO\n"
      "Num processes: 1\nProcess index: 0\nLocal process index: 0\n"
      "Device: cpu\n\nMixed precision type: no\n");
}

TEST(AcceleratorState, SaysWhatPythonsDoes) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::bf16, .world = world});
    const AcceleratorState state = accelerator.state();
    EXPECT_EQ(state.process_index, accelerator.process_index());
    EXPECT_NE(state.backend, "");
    EXPECT_EQ(
        state.text(),
        "Distributed environment: DistributedType.MULTI_CPU  Backend: " +
            state.backend + "\nNum processes: 2\nProcess index: " +
            std::to_string(state.process_index) + "\nLocal process index: " +
            std::to_string(state.local_process_index) +
            "\nDevice: cpu\n\nMixed precision type: bf16\n");
  });
}

TEST(MeshRanks, AreCoordinates) {
  run_on_ranks(4, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.replicate = 2, .shard = 2}, .world = world});
    const int rank = accelerator.process_index();
    EXPECT_EQ(accelerator.mesh().coordinate(Axis::replicate), rank / 2);
    EXPECT_EQ(accelerator.mesh().coordinate(Axis::shard), rank % 2);
    EXPECT_EQ(accelerator.mesh().coordinate(Axis::tensor), 0);
    EXPECT_EQ(accelerator.mesh().coordinate(Axis::context), 0);
    EXPECT_EQ(accelerator.mesh().coordinate(Axis::pipeline), 0);
    // The ranks of the first replica hold all of the model.
    EXPECT_EQ(accelerator.state().should_save_model, rank < 2);
  });
  run_on_ranks(3, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    EXPECT_EQ(
        accelerator.mesh().coordinate(Axis::replicate),
        accelerator.process_index());
    EXPECT_EQ(
        accelerator.state().should_save_model,
        accelerator.is_local_main_process());
  });
}

TEST(DeepSpeedPlugin, HasEveryValue) {
  run_on_ranks(2, [](const WorldOptions& world) {
    DeepSpeedOptions options{.zero_stage = 1};
    const Accelerator accelerator(
        {.parallel = {.deepspeed = options}, .world = world});
    ASSERT_TRUE(accelerator.state().deepspeed_plugin);
    EXPECT_EQ(accelerator.state().deepspeed_plugin->zero_stage, 1);
    EXPECT_EQ(
        accelerator.state().deepspeed_plugin->offload_param_device, "none");
    EXPECT_EQ(accelerator.state().deepspeed_plugin->zero3_init_flag, false);
  });
}

}  // namespace distributed_facts_test
}  // namespace accelerate
