// What a profile that records only where the time of steps goes adds to a step,
// as a part of it: the same loop with and without one, in interleaved blocks.
// The net is small, so that a larger one has less.
#include <optional>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"
#include "report.h"

namespace {

using namespace accelerate::benchmarks;
namespace F = torch::nn::functional;

constexpr int kBlocks = 200;
constexpr int kStepsInBlock = 50;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2(torch::relu(fc1(x)));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(64, 64));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(64, 10));
};
TORCH_MODULE(Net);

}  // namespace

int main() {
  keep_freed_memory();
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({32, 64});
  const torch::Tensor labels = torch::randint(10, {32});
  const accelerate::Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(F::cross_entropy(model(inputs), labels));
    optimizer.step();
  };
  // Blocks of steps, so that profiles begin and end outside of what is
  // compared to a single step.
  const auto profiled = [&] {
    auto profile = accelerator.profile(
        {.activities = std::vector<accelerate::ProfilerActivity>{}});
    for (int i = 0; i < kStepsInBlock; ++i) {
      step();
      profile.step();
    }
    profile.stop();
  };
  const auto plain = [&] {
    for (int i = 0; i < kStepsInBlock; ++i) step();
  };
  const Interleaved times = interleave(kBlocks, 1, profiled, plain);
  const double ours = median(times.ours) / kStepsInBlock;
  const double baseline = median(times.baseline) / kStepsInBlock;
  report(
      {"track",
       "profiler_table_percent",
       100 * (ours / baseline - 1),
       "%",
       baseline,
       ours / baseline,
       times.ours.size()});
}
