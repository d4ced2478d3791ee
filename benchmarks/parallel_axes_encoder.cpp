// torch::nn::TransformerEncoder on ranks that split its layers or divide its
// sequences: steps, and the peak memory of a long sequence.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "memory.h"
#include "parallel_axes.h"
#include "report.h"

namespace accelerate::benchmarks {

namespace {

namespace nn = torch::nn;
using at::Tensor;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kHeads = 8, kBatch = 4, kTime = 256;
constexpr int kLayers = 4;

nn::TransformerEncoder encoder(std::int64_t width) {
  return nn::TransformerEncoder(nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(width, kHeads)
              .dim_feedforward(4 * width)
              .dropout(0)),
      kLayers));
}

AcceleratorOptions on_axis(const std::string& axis, int num_ranks) {
  AcceleratorOptions options;
  if (axis == "context") {
    options.parallel.context = num_ranks;
  } else {
    options.parallel.tensor = num_ranks;
    options.parallel.parallelize_plan =
        infer_parallelize_plan(*encoder(512), num_ranks, axis == "sequence")
            .plan;
  }
  return options;
}

// Runs a causal step on sequences of `time` positions, divided along context.
void step(
    const Accelerator& accelerator,
    auto& model,
    std::int64_t time,
    std::int64_t batch,
    std::int64_t width) {
  const Tensor x = torch::randn({time, batch, width});
  const Tensor mask =
      nn::TransformerImpl::generate_square_subsequent_mask(time);
  std::optional<ContextParallelScope> sequence;
  if (accelerator.mesh().degree(Axis::context) > 1) {
    sequence.emplace(accelerator.maybe_context_parallel(
        {x, mask}, {0, 0}, {}, {.rotation = KeyValueRotation::alltoall}));
  }
  accelerator.backward(model(x, mask).pow(2).mean());
}

// Returns the median milliseconds per step; negative except on the first rank.
double step_ms(const AcceleratorOptions& options) {
  constexpr std::int64_t kWidth = 512;
  const Accelerator accelerator(options);
  auto net = encoder(kWidth);
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  constexpr int kSteps = 8;
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) {
    accelerator.world().group().barrier();
    const auto start = Clock::now();
    optimizer.zero_grad();
    step(accelerator, model, kTime, kBatch, kWidth);
    optimizer.step();
    if (i > 1)
      times.push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count());
  }
  return accelerator.is_main_process() ? median(times) : -1;
}

// Returns the peak memory above that of an idle rank, in bytes; negative except
// on the first rank.
double peak_of_sequence(int num_ranks, std::int64_t time) {
  constexpr std::int64_t kNarrow = 256;
  const Accelerator accelerator(on_axis("context", num_ranks));
  auto net = encoder(kNarrow);
  auto model = accelerator.prepare(net);
  for (int i = 0; i < 3; ++i) step(accelerator, model, 64, 1, kNarrow);
  const double idle = memory_of_process("VmRSS");
  forget_peak();
  step(accelerator, model, time, 1, kNarrow);
  const double peak = memory_of_process("VmHWM") - idle;
  return accelerator.is_main_process() ? peak : -1;
}

}  // namespace

void measure_encoder(int num_repeats) {
  for (const int num_ranks : {2, 4}) {
    for (const std::string axis : {"tensor", "sequence", "context"}) {
      const std::string metric =
          "encoder_" + axis + "_step_ms_" + std::to_string(num_ranks);
      std::vector<double> times;
      for (int repeat = 0; repeat < num_repeats; ++repeat) {
        const auto time =
            in_processes(num_ranks, metric + "_" + std::to_string(repeat), [&] {
              return step_ms(on_axis(axis, num_ranks));
            });
        if (time) times.push_back(*time);
      }
      if (times.empty()) continue;
      report(
          {"parallel_axes", metric, median(times), "ms", 0, 0, times.size()});
    }
  }
  constexpr std::int64_t kLong = 2048;
  const auto peak = in_processes(
      4, "encoder_peak_4", [] { return peak_of_sequence(4, kLong); });
  if (!peak) return;
  report(
      {"parallel_axes",
       "encoder_context_peak_mb_4",
       *peak / 1e6,
       "MB",
       0,
       0,
       1});
}

}  // namespace accelerate::benchmarks
