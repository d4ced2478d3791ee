// The device map of a model of 5,000 modules, against a walk that only counts
// its parameters.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "report.h"

namespace {

constexpr int kBlocks = 555;
constexpr int kLayers = 8;
constexpr int kRuns = 41;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    for (int i = 0; i < kLayers; ++i) {
      register_module("layer" + std::to_string(i), torch::nn::Linear(256, 256));
    }
  }
};

std::shared_ptr<torch::nn::Module> make_model() {
  auto model = std::make_shared<torch::nn::Module>("Model");
  torch::nn::ModuleList blocks;
  for (int i = 0; i < kBlocks; ++i)
    blocks->push_back(std::make_shared<BlockImpl>());
  model->register_module("blocks", blocks);
  return model;
}

template <class Function>
double median_ms(Function&& function) {
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    times.push_back(taken.count());
  }
  return accelerate::benchmarks::median(std::move(times));
}

}  // namespace

int main() {
  const auto model = accelerate::init_empty_weights(&make_model);
  const accelerate::InferAutoDeviceMapOptions options{
      .max_memory = {{"cpu", "500MB"}},
      .no_split_module_classes = {"BlockImpl"}};
  std::size_t entries = 0;
  const double map = median_ms([&] {
    entries = accelerate::infer_auto_device_map(*model, options).size();
  });
  std::int64_t elements = 0;
  const double walk = median_ms([&] {
    for (const auto& parameter : model->parameters())
      elements += parameter.numel();
  });
  if (entries == 0 || elements == 0) return 1;
  accelerate::benchmarks::report(
      {"offload", "device_map_ms", map, "ms", walk, map / walk, kRuns});
  return 0;
}
