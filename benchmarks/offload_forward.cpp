// A forward of a model whose weights are on disk, compared with its lower
// bound: the longer of one plain read of the same bytes and the forward of the
// model in memory. Measured with the file in the page cache (warm) and without
// (cold; also compared with four direct readers, the fastest way to read a
// file). Also compares its memory with two blocks.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "cold_files.h"
#include "direct_reads.h"
#include "memory.h"
#include "report.h"

namespace {

namespace fs = std::filesystem;
using namespace accelerate::benchmarks;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 2048;
constexpr int kBlocks = 24;
constexpr int kRounds = 5;
constexpr double kMega = 1e6;

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

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void report_ratio(
    const std::string& metric,
    const std::vector<double>& ours,
    const std::vector<double>& floor) {
  report(
      {"offload",
       metric,
       median(ours) / median(floor),
       "x",
       1e3 * median(floor),
       median(ours) / median(floor),
       ours.size()});
}

}  // namespace

int main() {
  const torch::NoGradGuard no_grad;
  std::string name = (fs::temp_directory_path() / "offload-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return 1;
  const fs::path directory = name;
  const fs::path file = directory / "model.safetensors";
  const torch::Tensor x = torch::randn({8, kWidth});
  std::vector<double> resident;
  {
    Net net;
    accelerate::save_model(*net, directory);
    net(x);
    for (int i = 0; i < kRounds; ++i)
      resident.push_back(seconds_of([&] { net(x); }));
  }
  auto big = accelerate::load_checkpoint_and_dispatch(
      accelerate::init_empty_weights([] { return Net(); }),
      directory,
      {.device_map = accelerate::DeviceMap{{"", "disk"}},
       .preload_module_classes = {"Block"}});
  // What is left in memory is not the weights'.
  big(x);
  read_plainly(file);
  big.dispatch().offload();
  const double idle = memory_of_process("VmRSS");
  double peak = 0;
  for (const bool is_cold : {false, true}) {
    std::vector<double> ours, floor, direct;
    for (int i = 0; i < kRounds; ++i) {
      big.dispatch().offload();
      if (is_cold) forget(file);
      forget_peak();
      ours.push_back(seconds_of([&] { big(x); }));
      big.dispatch().offload();
      peak = std::max(peak, memory_of_process("VmHWM") - idle);
      if (is_cold) forget(file);
      floor.push_back(
          std::max(seconds_of([&] { read_plainly(file); }), median(resident)));
      if (!is_cold) continue;
      forget(file);
      Buffer buffer(fs::file_size(file) + kDirectPage);
      direct.push_back(
          seconds_of([&] { read_in_parallel(file, buffer, O_DIRECT); }));
    }
    const std::string suffix = is_cold ? "_cold" : "_warm";
    report_ratio("disk_over_floor" + suffix, ours, floor);
    if (is_cold) report_ratio("disk_over_direct_read_cold", ours, direct);
    report(
        {"offload",
         "disk_forward_ms" + suffix,
         1e3 * median(ours),
         "ms",
         1e3 * median(resident),
         median(ours) / median(resident),
         ours.size()});
  }
  report(
      {"offload",
       "resident_forward_ms",
       1e3 * median(resident),
       "ms",
       1e3 * big.stats().wait_seconds / (2 * kRounds + 1),
       0,
       resident.size()});
  constexpr double kBlockBytes = 2.0 * (kWidth * kWidth + kWidth) * 4;
  report(
      {"offload",
       "resident_mb",
       static_cast<double>(big.stats().peak_bytes) / kMega,
       "MB",
       2 * kBlockBytes / kMega,
       static_cast<double>(big.stats().peak_bytes) / (2 * kBlockBytes),
       1});
  report(
      {"offload",
       "resident_above_idle_mb",
       peak / kMega,
       "MB",
       2 * kBlockBytes / kMega,
       peak / (2 * kBlockBytes),
       1});
  fs::remove_all(directory);
  return 0;
}
