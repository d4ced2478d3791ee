// Sharding models on an accelerator, with messages in host memory.
#include <cstdlib>
#include <filesystem>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/device_sharding.h"
#include "support/pretend_device.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace shard_device_test {

using testing::pretend_device;
using testing::run_on_ranks;
using testing::train_device_net;
using torch::Tensor;
using Net = testing::DeviceNet;

TEST(ShardOnDevice, TrainsAsOnTheCpu) {
  pretend_device();
  std::vector<Tensor> expected;
  run_on_ranks(2, [&](const WorldOptions& options) {
    WorldOptions world = options;
    world.device = at::kCPU;
    const auto weights = train_device_net(
        world, {.fully_sharded = FullyShardedDataParallelOptions()});
    if (world.rank == 0) expected = weights;
  });
  for (const auto& [name, parallel] : testing::ways_to_train_on_devices()) {
    SCOPED_TRACE(name);
    const bool is_offloaded = name.ends_with("offloaded");
    run_on_ranks(2, [&, &way = parallel](const WorldOptions& options) {
      WorldOptions world = options;
      world.device = pretend_device(*options.rank);
      const auto found = train_device_net(
          world,
          way,
          [&](const Accelerator& accelerator, torch::optim::Optimizer& inner) {
            EXPECT_EQ(accelerator.device(), *world.device);
            for (const Tensor& shard : inner.param_groups()[0].params()) {
              if (shard.dim() > 0) {
                EXPECT_EQ(shard.is_cpu(), is_offloaded) << shard.sizes();
              }
            }
          });
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-5, 1e-6))
            << i << " " << (found[i] - expected[i]).abs().max().item<double>();
      }
    });
  }
}

// On one rank only files are a reason to have shards.
TEST(ShardOnDevice, OfOneRankLieInFiles) {
  pretend_device();
  std::vector<Tensor> ends[2];
  for (const bool on_disk : {false, true}) {
    run_on_ranks(1, [&](const WorldOptions& options) {
      WorldOptions world = options;
      world.device = pretend_device(*options.rank);
      FullyShardedDataParallelOptions sharding;
      if (on_disk) {
        sharding.cpu_offload = true;
        sharding.offload_directory =
            std::filesystem::temp_directory_path().string();
        sharding.offload_directory_in_memory = true;
      }
      ends[on_disk] = train_device_net(world, {.fully_sharded = sharding});
    });
  }
  ASSERT_EQ(ends[0].size(), ends[1].size());
  for (std::size_t i = 0; i < ends[0].size(); ++i)
    EXPECT_TRUE(torch::allclose(ends[0][i], ends[1][i], 1e-5, 1e-6)) << i;
}

TEST(ShardOnDevice, SavesAndLoadsWeights) {
  pretend_device();
  const testing::TemporaryDirectory directory;
  const Net before;
  for (const bool from_rank_0 : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& options) {
      WorldOptions world = options;
      world.device = pretend_device(*options.rank);
      const Accelerator accelerator(
          {.parallel = {.fully_sharded = FullyShardedDataParallelOptions()},
           .world = world});
      Net net;
      const auto model = accelerator.prepare(net);
      if (!from_rank_0) accelerator.save_model(model, directory.path());
      Net empty = init_empty_weights([] { return Net(); });
      const auto other = accelerator.prepare(empty);
      EXPECT_EQ(empty->layers[0]->parameters()[0].device(), *world.device);
      accelerator.load_model(
          other, directory.path(), {.broadcast_from_rank0 = from_rank_0});
      const WeightList found = accelerator.get_state_dict(other);
      if (!accelerator.is_main_process()) return;
      const WeightList expected = get_state_dict(*before);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::equal(found[i].second, expected[i].second))
            << found[i].first;
      }
    });
  }
}

TEST(Device, IsTheAcceleratorIfCodeSaysSoWhateverTheLauncherWasTold) {
  const at::Device device = pretend_device();
  setenv("ACCELERATE_USE_CPU", "true", 1);
  const WorldOptions one{.rank = 0, .size = 1};
  EXPECT_EQ(Accelerator({.world = one}).device(), at::kCPU);
  const Accelerator accelerator({.cpu = false, .world = one});
  EXPECT_EQ(accelerator.device(), device);
  EXPECT_NE(
      accelerator.explain_settings().find("use_cpu = false  (code)\n"),
      std::string::npos);
  unsetenv("ACCELERATE_USE_CPU");
  EXPECT_EQ(Accelerator({.world = one}).device(), device);
  EXPECT_EQ(Accelerator({.cpu = true, .world = one}).device(), at::kCPU);
}

TEST(Device, IsThatOfTheSeatInAnElasticGroup) {
  // The first of two ranks has left, and the other is renumbered.
  const auto scope = patch_environment(
      {{"RANK", "0"},
       {"WORLD_SIZE", "1"},
       {"LOCAL_RANK", "0"},
       {"LOCAL_WORLD_SIZE", "1"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", "29500"},
       {"ACCELERATE_CPP_GENERATION", "2"},
       {"ACCELERATE_CPP_BOARD_PAGE", "1"}});
  EXPECT_EQ(World().device(), at::Device(pretend_device().type(), 1));
  EXPECT_EQ(
      World({.local_rank = 0}).device(),
      at::Device(pretend_device().type(), 0));
}

}  // namespace shard_device_test
}  // namespace accelerate
