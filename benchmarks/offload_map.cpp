// The device map of a model of 5,000 modules, compared with a walk that only
// counts its parameters; and the time and memory to describe a model of 100
// billion parameters without its weights.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
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

/// A GPT block: attention and a feed-forward layer of four times its width.
struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(std::int64_t width) {
    namespace nn = torch::nn;
    register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({width})));
    register_module("c_attn", nn::Linear(width, 3 * width));
    register_module("c_proj", nn::Linear(width, width));
    register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({width})));
    register_module("c_fc", nn::Linear(width, 4 * width));
    register_module("mlp_proj", nn::Linear(4 * width, width));
  }
};

std::shared_ptr<torch::nn::Module> make_gpt_of_100_billion() {
  constexpr std::int64_t kGptWidth = 10240;
  constexpr int kGptBlocks = 80;
  constexpr std::int64_t kVocabulary = 50257;
  auto model = std::make_shared<torch::nn::Module>("Gpt");
  model->register_module("wte", torch::nn::Embedding(kVocabulary, kGptWidth));
  torch::nn::ModuleList blocks;
  for (int i = 0; i < kGptBlocks; ++i)
    blocks->push_back(std::make_shared<GptBlockImpl>(kGptWidth));
  model->register_module("blocks", blocks);
  return model;
}

double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  double size = 0;
  double resident = 0;
  statm >> size >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

int describe_100_billion() {
  constexpr double kGoalMs = 2000;
  constexpr double kGoalMb = 500;
  const double before = resident_mb();
  const auto begin = std::chrono::steady_clock::now();
  const auto model = accelerate::init_empty_weights(&make_gpt_of_100_billion);
  const std::chrono::duration<double, std::milli> taken =
      std::chrono::steady_clock::now() - begin;
  const double added = resident_mb() - before;
  std::int64_t elements = 0;
  for (const auto& parameter : model->parameters())
    elements += parameter.numel();
  if (elements < 100'000'000'000) return EXIT_FAILURE;
  accelerate::benchmarks::report(
      {"offload",
       "describe_100_billion_ms",
       taken.count(),
       "ms",
       kGoalMs,
       taken.count() / kGoalMs,
       1});
  accelerate::benchmarks::report(
      {"offload",
       "describe_100_billion_mb",
       added,
       "MB",
       kGoalMb,
       added / kGoalMb,
       1});
  return EXIT_SUCCESS;
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
  if (describe_100_billion() != EXIT_SUCCESS) return EXIT_FAILURE;
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
