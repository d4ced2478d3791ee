// A step of two CPU ranks, fully sharded, with ZeRO stage 1, and replicated (16
// million parameters, AdamW), and the cost of an operator on a tensor without a
// gate while another tensor has one.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 1024;
constexpr int kLayers = 16;
constexpr std::int64_t kBatch = 64;
constexpr int kSteps = 12;
constexpr int kRepeats = 5;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

// Nanoseconds per addition of small tensors.
double addition_ns() {
  const torch::NoGradGuard no_grad;
  const auto a = torch::ones({4}), b = torch::ones({4});
  constexpr int kCalls = 200000;
  const auto start = Clock::now();
  for (int i = 0; i < kCalls; ++i) a.add(b);
  return milliseconds_since(start) * 1e6 / kCalls;
}

void measure_steps(const ParallelOptions& parallel, const std::string& file) {
  const double before = addition_ns();
  Accelerator accelerator({.parallel = parallel});
  nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(nn::Linear(kWidth, kWidth));
  torch::optim::AdamW adamw(net->parameters(), 1e-4);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto x = torch::randn({kBatch, kWidth});
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const auto start = Clock::now();
    optimizer.zero_grad();
    accelerator.backward(model(x).pow(2).mean());
    optimizer.step();
    // The first step records the execution order and allocates memory.
    if (step > 1) times.push_back(milliseconds_since(start));
  }
  if (accelerator.is_main_process())
    std::ofstream(file) << benchmarks::median(times) << ' ' << before << ' '
                        << addition_ns();
}

struct Way {
  std::string name;
  ParallelOptions parallel;
  std::vector<double> times = {}, before = {}, after = {};
};

}  // namespace

int main() {
  std::vector<Way> ways{
      {"replicate", {}},
      {"zero1",
       {.deepspeed =
            DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 1}}},
      {"full_shard", {.fully_sharded = FullyShardedDataParallelOptions()}}};
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (Way& way : ways) {
      const std::string name = way.name + "_" + std::to_string(repeat);
      const std::string file =
          "/tmp/shard_speed_" + std::to_string(getuid()) + "_" + name;
      launch_function(
          [&] { measure_steps(way.parallel, file); },
          {.num_processes = 2, .name = name, .cpu = true});
      double time = 0, before = 0, after = 0;
      // Ranks run this program too, but do not report.
      if (!(std::ifstream(file) >> time >> before >> after)) continue;
      std::remove(file.c_str());
      way.times.push_back(time);
      way.before.push_back(before);
      way.after.push_back(after);
    }
  }
  if (ways[0].times.size() < kRepeats) return 0;
  const double baseline = benchmarks::median(ways[0].times);
  for (const Way& way : ways) {
    const double time = benchmarks::median(way.times);
    benchmarks::report(
        {"shard_speed",
         way.name + "_step_ms",
         time,
         "ms",
         baseline,
         time / baseline,
         way.times.size()});
  }
  const double parameters =
      static_cast<double>(kLayers) * (kWidth * kWidth + kWidth) * 4;
  // Bytes that each of two ranks sends: half of the parameters per gather or
  // reduction.
  benchmarks::report(
      {"shard_speed",
       "full_shard_bytes_sent",
       1.5 * parameters / 1e6,
       "MB",
       parameters / 1e6,
       1.5,
       1});

  const Way& sharded = ways.back();
  benchmarks::report(
      {"shard_speed",
       "ungated_operator_ns",
       benchmarks::median(sharded.after),
       "ns",
       benchmarks::median(sharded.before),
       benchmarks::median(sharded.after) / benchmarks::median(sharded.before),
       sharded.after.size()});
}
