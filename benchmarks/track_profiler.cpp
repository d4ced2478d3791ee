// What a profile that records only how steps spend their time adds to a step,
// in microseconds and as a fraction: the same loop with and without a profile,
// in interleaved blocks. The net is the small one of track.cpp: steps of larger
// nets gain as many microseconds, which is a smaller fraction.
#include <chrono>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"
#include "report.h"

namespace {

using namespace accelerate::benchmarks;
using Clock = std::chrono::steady_clock;
namespace F = torch::nn::functional;

constexpr int kBlocks = 200;
constexpr int kStepsInBlock = 50;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(256, 512));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(512, 512));
  torch::nn::Linear fc3 = register_module("fc3", torch::nn::Linear(512, 10));
};
TORCH_MODULE(Net);

}  // namespace

int main() {
  keep_freed_memory();
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({64, 256});
  const torch::Tensor labels = torch::randint(10, {64});
  const accelerate::Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(F::cross_entropy(model(inputs), labels));
    optimizer.step();
  };
  // A profile begins and ends outside the timed part: the first step, in which
  // it learns where steps wait, is not timed either.
  const auto microseconds_per_step = [&](auto&& one) {
    one();
    const auto start = Clock::now();
    for (int i = 0; i < kStepsInBlock; ++i) one();
    const std::chrono::duration<double, std::micro> elapsed =
        Clock::now() - start;
    return elapsed.count() / kStepsInBlock;
  };
  const auto profiled = [&] {
    auto profile = accelerator.profile(
        {.activities = std::vector<accelerate::ProfilerActivity>{}});
    const double result = microseconds_per_step([&] {
      step();
      profile.step();
    });
    profile.stop();
    return result;
  };
  const auto plain = [&] { return microseconds_per_step(step); };
  Interleaved times;
  plain();
  profiled();
  for (int i = 0; i < kBlocks; ++i) {
    if (i % 2 == 0) times.baseline.push_back(plain());
    times.ours.push_back(profiled());
    if (i % 2 == 1) times.baseline.push_back(plain());
  }
  const double ours = median(times.ours);
  const double baseline = median(times.baseline);
  report(
      {"track",
       "profiler_table_us",
       ours - baseline,
       "us",
       baseline,
       ours / baseline,
       times.ours.size()});
  report(
      {"track",
       "profiler_table_percent",
       100 * (ours / baseline - 1),
       "%",
       baseline,
       ours / baseline,
       times.ours.size()});
}
