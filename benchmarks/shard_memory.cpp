// Peak resident memory of a rank, above that of an idle rank, while a model of
// 200 million parameters is trained with AdamW, fully sharded over 1, 2 and 4
// CPU ranks, compared with the necessary memory: the rank's shards of
// parameters, gradients and optimizer state, the two largest units unsharded,
// and the batch's activations.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "memory.h"
#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;

constexpr std::int64_t kWidth = 2048;
constexpr int kBlocks = 24;
constexpr std::int64_t kBatch = 32;
constexpr int kSteps = 3;

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down(torch::relu(up(x)));
  }
  nn::Linear up{kWidth, kWidth};
  nn::Linear down{kWidth, kWidth};
};
TORCH_MODULE(Block);

using benchmarks::forget_peak;
using benchmarks::memory_of_process;

// Loads LibTorch's code for the step into memory.
void warm_up() {
  nn::Linear tiny(2, 2);
  torch::optim::AdamW adamw(tiny->parameters(), 1e-4);
  tiny(torch::ones({2, 2})).relu().pow(2).mean().backward();
  adamw.step();
}

// Writes, on rank 0, the highest peak above an idle rank's memory to `file`, in
// bytes.
void measure(const std::string& file) {
  Accelerator accelerator(
      {.parallel = {.fully_sharded = FullyShardedDataParallelOptions()}});
  accelerator.world().group().all_reduce(torch::ones({1}));
  warm_up();
  const double idle = memory_of_process("VmRSS");

  nn::ModuleList blocks;
  for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
  torch::optim::AdamW adamw(blocks->parameters(), 1e-4);
  auto [model, optimizer] = accelerator.prepare(blocks, adamw);
  const auto x = torch::randn({kBatch, kWidth});
  forget_peak();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model.call([&](nn::ModuleListImpl& module) {
      torch::Tensor h = x;
      for (const auto& block : module) h = block->as<Block>()->forward(h);
      return h.pow(2).mean();
    }));
    optimizer.step();
  }
  const double peak = memory_of_process("VmHWM") - idle;
  const auto peaks = accelerator.world().group().all_gather(
      torch::tensor({peak}, torch::kDouble));
  if (!accelerator.is_main_process()) return;
  double highest = 0;
  for (const auto& of_rank : peaks)
    highest = std::max(highest, of_rank.item<double>());
  std::ofstream(file) << highest;
}

double bound(int ranks) {
  const double per_block = 2.0 * (kWidth * kWidth + kWidth) * 4;
  const double state = 4 * per_block * kBlocks / ranks;
  // Activations per block: the inputs of its products and comparison, and the
  // sum.
  const double activations = 4.0 * kBlocks * kBatch * kWidth * 4;
  return (state + 2 * per_block + activations) * 1.05;
}

}  // namespace

int main() {
  for (const int ranks : {1, 2, 4}) {
    const std::string file = "/tmp/shard_memory_" + std::to_string(getuid()) +
        "_" + std::to_string(ranks);
    launch_function(
        [&] { measure(file); },
        {.num_processes = ranks,
         .name = "ranks_" + std::to_string(ranks),
         .cpu = true});
    // Ranks run this program too, but do not report.
    double peak = 0;
    if (!(std::ifstream(file) >> peak)) continue;
    std::remove(file.c_str());
    benchmarks::report(
        {"shard_memory",
         "peak_over_bound_" + std::to_string(ranks),
         peak / bound(ranks),
         "x",
         bound(ranks) / 1e6,
         peak / bound(ranks),
         1});
  }
}
