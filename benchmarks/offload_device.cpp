// A forward with weights in host memory, on an accelerator that takes as long
// for its products as its link takes for the weights, compared with the longer
// of the two. The accelerator is simulated by sleeping, so the figure measures
// the pipeline, not this machine.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "report.h"
#include "support/pretend_device.h"

namespace {

using namespace accelerate::benchmarks;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kBatch = 8;
constexpr int kBlocks = 24;
constexpr int kRounds = 5;
constexpr double kBytesPerSecond = 0.5e9;
constexpr double kFlopsPerSecond = 2e9;

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down(torch::relu(up(x)));
  }
  torch::nn::Linear up =
      register_module("up", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Block> blocks;
};
TORCH_MODULE(Net);

std::vector<double> seconds_of(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = Clock::now();
    work();
    times.push_back(
        std::chrono::duration<double>(Clock::now() - start).count());
  }
  return times;
}

}  // namespace

int main() {
  const torch::NoGradGuard no_grad;
  torch::set_num_threads(1);
  const at::Device device = accelerate::testing::pretend_device(0);
  const torch::Tensor x = torch::randn({kBatch, kWidth}).to(device);
  accelerate::testing::set_pretend_speeds(
      {.link_bytes_per_second = kBytesPerSecond,
       .flops_per_second = kFlopsPerSecond});
  Net net;
  double bytes = 0;
  for (const auto& parameter : net->parameters())
    bytes += static_cast<double>(parameter.nbytes());
  std::vector<double> ours;
  {
    auto big = accelerate::cpu_offload(
        net, {.execution_device = device, .preload_module_classes = {"Block"}});
    // Two rounds teach it the order of the blocks and of the rounds.
    big(x);
    big(x);
    ours = seconds_of([&] { big(x); });
    big.dispatch().release();
  }
  const std::vector<double> resident = seconds_of([&] { net(x); });
  const double link = bytes / kBytesPerSecond;
  const double floor = std::max(link, median(resident));
  report(
      {"offload",
       "cpu_to_device",
       median(ours) / floor,
       "x",
       1e3 * floor,
       median(ours) / floor,
       ours.size()});
  report(
      {"offload",
       "cpu_to_device_ms",
       1e3 * median(ours),
       "ms",
       1e3 * (link + median(resident)),
       median(ours) / (link + median(resident)),
       ours.size()});
  return 0;
}
