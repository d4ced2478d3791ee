// Ranks that are processes share a CUDA device through the real NCCL, which takes
// them for different machines.
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/launch.h>

#include "comm/group/group_impl.h"
#include "support/device_sharding.h"
#include "support/gpu_device.h"

namespace accelerate {
namespace nccl_gpu_test {

using torch::Tensor;

class NcclOnGpu : public testing::OnGpu {
 protected:
  /// Runs `rank` in processes that start this test again.
  template <class Rank>
  void run(int num_ranks, Rank&& rank) {
    const std::string test =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    launch_function(
        [&] {
          const std::string own = std::getenv("RANK");
          setenv("NCCL_HOSTID", ("rank" + own).c_str(), 1);
          rank(WorldOptions{
              .transport = "nccl",
              .device = device_,
              .timeout = std::chrono::seconds(60)});
        },
        {.num_processes = num_ranks,
         .name = test + std::to_string(num_ranks),
         .variables = {{"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}},
         .arguments = std::vector{"--gtest_filter=NcclOnGpu." + test}});
  }
};

// EXPECT_ would be lost in a rank.
void require(const std::string& what, const Tensor& found, const Tensor& good) {
  TORCH_CHECK(found.is_cuda(), what, " left the device");
  TORCH_CHECK(
      torch::equal(found.cpu(), good), what, ": ", found, " instead of ", good);
}

void move_tensors(const World& world) {
  const Group& group = world.group();
  const int n = world.size(), mine = world.rank();
  const auto on = [&](const Tensor& tensor) {
    return tensor.to(world.device());
  };
  TORCH_CHECK(group.impl()->connection->facts().name == "shared_memory+nccl");
  for (const auto type :
       {at::kByte,
        at::kShort,
        at::kInt,
        at::kLong,
        at::kHalf,
        at::kBFloat16,
        at::kFloat,
        at::kDouble}) {
    const Tensor value = on(torch::full({5}, mine + 1, type));
    group.all_reduce(value);
    require("all_reduce", value, torch::full({5}, n * (n + 1) / 2, type));
    const auto all = group.all_gather(on(torch::full({2}, mine, type)));
    for (int r = 0; r < n; ++r) {
      require(
          "all_gather",
          all[static_cast<std::size_t>(r)],
          torch::full({2}, r, type));
    }
  }
  const Tensor mean = on(torch::full({2}, 2.0 * mine));
  group.all_reduce(mean, ReduceOp::mean);
  require("a mean", mean, torch::full({2}, n - 1.0));
  std::vector<Tensor> parts;
  for (int r = 0; r < n; ++r) parts.push_back(on(torch::full({r}, 10 * mine)));
  const auto received = group.all_to_all(parts);
  for (int r = 0; r < n; ++r) {
    require(
        "all_to_all",
        received[static_cast<std::size_t>(r)],
        torch::full({mine}, 10 * r));
  }
  const Group pair = world.new_group({mine / 2 * 2, mine / 2 * 2 + 1});
  const Tensor half = on(torch::full({3}, mine));
  pair.all_reduce(half);
  require("a pair", half, torch::full({3}, 2 * (mine / 2 * 2) + 1));
  const Tensor host = torch::full({2}, mine);
  group.all_reduce(host);
  TORCH_CHECK(torch::equal(host, torch::full({2}, n * (n - 1) / 2)));
}

TEST_F(NcclOnGpu, MovesTensorsOfEveryType) {
  for (const int num_ranks : {2, 4}) {
    run(num_ranks,
        [](const WorldOptions& options) { move_tensors(World(options)); });
  }
}

TEST_F(NcclOnGpu, TrainsReplicasAndShardsAsOneProcess) {
  run(2, [](const WorldOptions& options) {
    const auto expected = testing::train_device_net(
        {.rank = 0, .size = 1, .store = Store::in_memory()}, {});
    for (const auto& [name, parallel] : testing::ways_to_train_on_devices()) {
      const auto found = testing::train_device_net(options, parallel);
      for (std::size_t i = 0; i < found.size(); ++i) {
        TORCH_CHECK(
            torch::allclose(found[i], expected[i].cpu(), 1e-4, 1e-5),
            name,
            ": parameter ",
            i);
      }
    }
  });
}

TEST_F(NcclOnGpu, NamesARankThatHasEnded) {
  run(2, [](const WorldOptions& options) {
    const World world(options);
    const Tensor value = torch::ones({4}).to(world.device());
    world.group().all_reduce(value);
    static_cast<void>(value.cpu());
    if (world.rank() == 1) return;
    try {
      world.group().all_reduce(value);
      static_cast<void>(value.cpu());
      world.group().all_reduce(value);
    } catch (const DistributedError& error) {
      const std::string text = error.what();
      TORCH_CHECK(text.find("rank 1") != std::string::npos, text);
      return;
    }
    TORCH_CHECK(false, "the collective ended without rank 1");
  });
}

}  // namespace nccl_gpu_test
}  // namespace accelerate
