// Models whose weights are on a CUDA device, in host memory and on disk:
// outputs and gradients equal those of the full model on the device.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/big_model.h>
#include <accelerate/empty_weights.h>
#include <accelerate/module_tensors.h>
#include <accelerate/quantized_model.h>

#include "support/gpu_device.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace big_model_gpu_test {

namespace nn = torch::nn;
using testing::TemporaryDirectory;
using torch::Tensor;

using BigModelOnGpu = testing::OnGpu;

constexpr std::int64_t kWidth = 256;
constexpr int kBlocks = 8;

struct BlockImpl : nn::Module {
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  nn::LayerNorm norm =
      register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const auto& block : *blocks) h = block->as<Block>()->forward(h);
    return head(h);
  }
  nn::ModuleList blocks;
  nn::Linear head = register_module("head", nn::Linear(kWidth, 8));
};
TORCH_MODULE(Net);

Net net_with_values() {
  torch::manual_seed(3);
  return Net();
}

Tensor rows() {
  return torch::sin(torch::arange(16 * kWidth)).view({16, kWidth});
}

struct Result {
  Tensor output;
  std::vector<Tensor> gradients;
};

template <class Forward>
Result run(Net& net, Forward&& forward) {
  net->zero_grad();
  Result result;
  const Tensor output = forward();
  output.square().sum().backward();
  result.output = output.detach().cpu();
  for (const Tensor& parameter : net->parameters())
    result.gradients.push_back(parameter.grad().cpu());
  return result;
}

Result of_the_whole(at::Device device) {
  Net net = net_with_values();
  net->to(device);
  return run(net, [&] { return net(rows().to(device)); });
}

void expect_equal(const Result& found, const Result& expected) {
  EXPECT_TRUE(found.output.equal(expected.output));
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < found.gradients.size(); ++i)
    EXPECT_TRUE(found.gradients[i].equal(expected.gradients[i])) << i;
}

TEST_F(BigModelOnGpu, ComputesAsTheWholeModelWhereverWeightsAre) {
  const Result expected = of_the_whole(device_);
  std::vector<std::pair<std::string, MapDevice>> mixed{{"head", 0}};
  for (int i = 0; i < kBlocks; ++i) {
    const MapDevice place = i % 3 == 0 ? MapDevice(0)
        : i % 3 == 1                   ? MapDevice("cpu")
                                       : MapDevice("disk");
    mixed.emplace_back("blocks." + std::to_string(i), place);
  }
  for (const DeviceMap& map :
       {DeviceMap(mixed),
        DeviceMap({{"", "cpu"}}),
        DeviceMap({{"", "disk"}})}) {
    const TemporaryDirectory directory;
    Net net = net_with_values();
    auto big = dispatch_model(
        net,
        {.device_map = map,
         .main_device = 0,
         .offload_dir = directory.path() / "offload",
         .preload_module_classes = {"Block"}});
    EXPECT_EQ(big.dispatch().main_device(), device_);
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(i);
      const Result found = run(net, [&] { return big(rows()); });
      expect_equal(found, expected);
    }
    EXPECT_GT(big.dispatch().stats().num_fetches, 0);
    big.dispatch().release();
    for (const Tensor& parameter : net->parameters())
      EXPECT_EQ(parameter.device(), device_);
  }
}

TEST_F(BigModelOnGpu, ForwardsWithoutGradientsKeepThePipelineFilled) {
  const torch::NoGradGuard no_grad;
  Net whole = net_with_values();
  whole->to(device_);
  const Tensor expected = whole(rows().to(device_)).cpu();
  Net net = net_with_values();
  auto big = cpu_offload(
      net, {.execution_device = device_, .preload_module_classes = {"Block"}});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(big(rows()).equal(expected)) << i;
}

// Threads run ahead of devices, so their fetches have to wait for memory.
TEST_F(BigModelOnGpu, HoldsTwoBlocksOnTheDevice) {
  const torch::NoGradGuard no_grad;
  Net net = net_with_values();
  std::size_t block_bytes = 0, bytes = 0;
  for (const Tensor& each : net->blocks[0]->parameters())
    block_bytes += each.nbytes();
  for (const Tensor& each : net->parameters()) bytes += each.nbytes();
  ASSERT_GT(bytes, 7 * block_bytes);
  // Operators take far longer than the copies of their weights.
  const Tensor x =
      torch::randn({1 << 16, kWidth}, torch::device(device_)) * 0.1;
  auto big = cpu_offload(
      net, {.execution_device = device_, .preload_module_classes = {"Block"}});
  const auto peak_of = [&](auto&& forward) {
    at::accelerator::synchronizeDevice(device_.index());
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(device_.index());
    const auto reserved = [&](auto field) {
      return at::accelerator::getDeviceStats(device_.index())
                 .reserved_bytes[0].*
          field;
    };
    const std::int64_t before = reserved(&c10::CachingAllocator::Stat::current);
    forward();
    at::accelerator::synchronizeDevice(device_.index());
    return reserved(&c10::CachingAllocator::Stat::peak) - before;
  };
  big(x);
  const std::int64_t with_fetches = peak_of([&] { big(x); });
  EXPECT_EQ(big.dispatch().stats().peak_bytes, 2 * block_bytes);
  big.dispatch().release();
  const std::int64_t resident = peak_of([&] { net(x); });
  // The allocator rounds up to 20 MiB segments.
  EXPECT_LE(with_fetches - resident, 2 * block_bytes + (std::size_t{40} << 20));
}

TEST_F(BigModelOnGpu, LoadsACheckpointWithAMapItMakes) {
  const TemporaryDirectory directory;
  const Net whole = net_with_values();
  save_model(*whole, directory.path());
  const torch::NoGradGuard no_grad;
  Net on_device = net_with_values();
  on_device->to(device_);
  const Tensor expected = on_device(rows().to(device_)).cpu();
  for (const char* limit : {"100GB", "6MB"}) {
    SCOPED_TRACE(limit);
    Net net = init_empty_weights([] { return Net(); });
    auto big = load_checkpoint_and_dispatch(
        net,
        directory.path(),
        {.device_map = "auto",
         .max_memory = {{0, limit}, {"cpu", "1GB"}},
         .no_split_module_classes = {"Block"}});
    EXPECT_TRUE(big(rows()).equal(expected));
    EXPECT_EQ(net->blocks[0]->parameters()[0].device(), device_);
    const bool is_whole = std::string(limit) == "100GB";
    EXPECT_EQ(big.dispatch().stats().num_fetches == 0, is_whole);
  }
}

TEST_F(BigModelOnGpu, KnowsTheMemoryOfTheDevice) {
  const MaxMemory memory = get_max_memory();
  ASSERT_FALSE(memory.empty());
  EXPECT_EQ(memory.front().first, MapDevice(0));
  EXPECT_GT(memory.front().second.bytes(), std::int64_t{1} << 30);
}

// Products with weights that are not on the CPU dequantise them first, and
// round like the device's products.
TEST_F(BigModelOnGpu, MultipliesQuantisedWeights) {
  const TemporaryDirectory directory;
  const Net whole = net_with_values();
  save_model(*whole, directory.path());
  const torch::NoGradGuard no_grad;
  const QuantizationOptions nf4{
      .load_in_4bit = true,
      .bnb_4bit_quant_type = "nf4",
      .bnb_4bit_use_double_quant = true,
      .torch_dtype = "fp32"};
  const QuantizationOptions int8{.load_in_8bit = true, .torch_dtype = "fp32"};
  for (const QuantizationOptions& config : {nf4, int8}) {
    const auto output = [&](const DeviceMap& map, at::Device device) {
      Net net = init_empty_weights([] { return Net(); });
      const QuantizedModel quantized = load_and_quantize_model(
          *net,
          config,
          {.weights_location = directory.path(),
           .device_map = map,
           .offload_folder = directory.path() / "disk"});
      return net(rows().to(device)).cpu();
    };
    const Tensor expected = output({{"", "cpu"}}, at::kCPU);
    const Tensor found = output({{"", 0}}, device_);
    EXPECT_LE(
        (found - expected).abs().max().item<double>(),
        2e-2 * expected.abs().max().item<double>());
  }
}

}  // namespace big_model_gpu_test
}  // namespace accelerate
