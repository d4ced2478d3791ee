// Ranks that are threads share a CUDA device and send messages through host
// memory: they train as on the CPU.
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "support/device_sharding.h"
#include "support/gpu_device.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace sharding_gpu_test {

using torch::Tensor;

using ShardingOnGpu = testing::OnGpu;

std::vector<Tensor> weights_of_rank_0(
    int num_ranks,
    at::Device device,
    const ParallelOptions& parallel,
    const std::function<void(const Accelerator&, torch::optim::Optimizer&)>&
        look = nullptr) {
  std::vector<Tensor> weights;
  testing::run_on_ranks(num_ranks, [&](const WorldOptions& options) {
    WorldOptions world = options;
    world.device = device;
    auto found = testing::train_device_net(world, parallel, look);
    if (*world.rank == 0) weights = std::move(found);
  });
  return weights;
}

TEST_F(ShardingOnGpu, TrainsAsOnTheCpu) {
  const auto expected = weights_of_rank_0(1, at::kCPU, {});
  for (const int num_ranks : {2, 3}) {
    for (const auto& [name, parallel] : testing::ways_to_train_on_devices()) {
      SCOPED_TRACE(name + " on " + std::to_string(num_ranks));
      const bool is_offloaded = name.ends_with("offloaded");
      const auto found = weights_of_rank_0(
          num_ranks,
          device_,
          parallel,
          [&](const Accelerator& accelerator, torch::optim::Optimizer& inner) {
            EXPECT_EQ(accelerator.device(), device_);
            for (const Tensor& shard : inner.param_groups()[0].params()) {
              if (shard.dim() > 0) {
                EXPECT_EQ(shard.is_cpu(), is_offloaded) << shard.sizes();
              }
            }
          });
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-5))
            << i << " " << (found[i] - expected[i]).abs().max().item<double>();
      }
    }
  }
}

}  // namespace sharding_gpu_test
}  // namespace accelerate
