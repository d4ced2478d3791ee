// Pipelines of four ranks, schedule by schedule: the share of a step in which
// ranks are idle, compared with the schedule's theory, with layers that sleep;
// what a stage costs besides its layers, compared with a loop over
// micro-batches; peak memory, compared with what the schedule keeps; and steps
// of 2 and 4 ranks, as in benchmarks/peers/pipeline.py.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"
#include "memory.h"
#include "planning/pipeline/schedule.h"
#include "planning/pipeline/simulation.h"
#include "report.h"
#include "sleeping.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using namespace accelerate::benchmarks;
using accelerate::detail::make_partial_schedule;
using accelerate::detail::make_pipeline_schedule;
using accelerate::detail::PipelineKept;
using at::Tensor;

constexpr int kRanks = 4;
constexpr int kMicroBatches = 8;
constexpr int kSteps = 7;

struct Schedule {
  std::string name;
  int num_chunks = 1;
};

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all{
      {"GPipe"},
      {"1F1B"},
      {"Interleaved1F1B", 2},
      {"LoopedBFS", 2},
      {"ZBH1"},
      {"InterleavedZeroBubble", 2},
      {"ZBVZeroBubble", 2},
      {"DualPipeV", 2}};
  return all;
}

AcceleratorOptions options_of(int ranks) {
  AcceleratorOptions options;
  options.parallel.pipeline = ranks;
  return options;
}

PipelineOptions pipeline_options(const Schedule& schedule) {
  return {
      .schedule = parse_pipeline_schedule(schedule.name),
      .num_chunks = schedule.num_chunks,
      .num_micro_batches = kMicroBatches};
}

Tensor square_mean(const Tensor& y, const Tensor&) { return y.square().mean(); }

/// A measured value and its baseline.
struct Measured {
  double value = 0;
  double baseline = 0;
};

// The bubble.

constexpr int kLayers = 8;
constexpr double kLayerSeconds = 8e-3;

Measured measure_bubble(const Schedule& schedule) {
  const Accelerator accelerator(options_of(kRanks));
  const World& world = accelerator.world();
  PipelineLayers layers;
  for (int i = 0; i < kLayers; ++i)
    layers.add("layer" + std::to_string(i), Sleeping(16, kLayerSeconds));
  const Pipeline pipeline(accelerator, layers, pipeline_options(schedule));
  const Tensor x = torch::randn({kMicroBatches, 16});
  const double seconds =
      time_of(world, kSteps, [&] { pipeline.step(x, x, &square_mean); });
  const double forward = mean_over(world, in_layers.forward);
  const double backward = mean_over(world, in_layers.backward);
  // Weight gradients take no time, even in schedules that postpone them.
  const auto theory = simulate_pipeline(
      make_pipeline_schedule(
          parse_pipeline_schedule(schedule.name),
          kRanks,
          kMicroBatches,
          schedule.num_chunks),
      {.forward = forward, .backward_input = backward, .backward_weight = 0});
  return {1 - (forward + backward) / kSteps / seconds, theory.bubble};
}

// Memory.

/// Keeps one tensor of its input's size for the next layer and its own
/// backward, and the gradient of its result if the gradient of `scale` is
/// postponed.
struct KeepingImpl : nn::Module {
  KeepingImpl() : scale(register_parameter("scale", torch::ones({1}))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(x * scale); }
  Tensor scale;
};
TORCH_MODULE(Keeping);

constexpr std::int64_t kKeptElements = 1 << 20;
constexpr int kKeepingLayers = 32;

// Tensors that each of `num_stages` stages keeps: inputs and outputs of layers,
// except the batch itself, which the first stage does not receive; then inputs
// of layers and gradients of their results.
std::vector<PipelineKept> tensors_kept(int num_stages) {
  const double layers = static_cast<double>(kKeepingLayers) / num_stages;
  std::vector<PipelineKept> kept(
      static_cast<std::size_t>(num_stages), {layers + 1, 2 * layers});
  kept.front() = {layers, 2 * layers - 1};
  return kept;
}

Measured measure_peak(const Schedule& schedule) {
  // Returns freed memory to the system at once.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const Accelerator accelerator(options_of(kRanks));
  const World& world = accelerator.world();
  PipelineLayers layers;
  for (int i = 0; i < kKeepingLayers; ++i)
    layers.add("layer" + std::to_string(i), Keeping());
  const Pipeline pipeline(accelerator, layers, pipeline_options(schedule));
  const auto peak_of = [&](std::int64_t samples) {
    const Tensor x = torch::randn({samples, kKeptElements});
    double most = 0;
    for (int i = 0; i < 3; ++i) {
      world.wait_for_everyone();
      forget_peak();
      const double before = memory_of_process("VmRSS");
      world.wait_for_everyone();
      pipeline.step(x, x, &square_mean);
      most = std::max(most, memory_of_process("VmHWM") - before);
    }
    return most;
  };
  const double one = peak_of(1), all = peak_of(kMicroBatches);
  const auto kind = parse_pipeline_schedule(schedule.name);
  const auto kept = [&](int micro_batches) {
    const auto partial =
        make_partial_schedule(kind, kRanks, micro_batches, schedule.num_chunks);
    return most_kept(
        partial,
        tensors_kept(
            partial.num_stages()))[static_cast<std::size_t>(world.rank())];
  };
  const double bound = one +
      (kept(kMicroBatches) - kept(1)) * 4.0 *
          static_cast<double>(kKeptElements);
  // Reports the rank furthest above its bound.
  const Tensor both = torch::zeros({kRanks, 2}, torch::kDouble);
  both[world.rank()][0] = all;
  both[world.rank()][1] = bound;
  world.group().all_reduce(both);
  Measured worst{0, 1};
  for (int rank = 0; rank < kRanks; ++rank) {
    const Measured own{
        both[rank][0].item<double>(), both[rank][1].item<double>()};
    if (own.value / own.baseline > worst.value / worst.baseline) worst = own;
  }
  return {worst.value / 1e6, worst.baseline / 1e6};
}

// What a stage costs.

Measured measure_overhead(const Schedule& schedule) {
  keep_freed_memory();
  AcceleratorOptions options = options_of(1);
  options.world = {.rank = 0, .size = 1, .device = at::kCPU};
  const Accelerator accelerator(options);
  constexpr int kBlocks = 31, kCalls = 10;
  PipelineLayers layers;
  nn::Sequential whole;
  for (int i = 0; i < kLayers; ++i) {
    layers.add("layer" + std::to_string(i), nn::Linear(16, 16));
    whole->push_back(nn::Linear(16, 16));
  }
  const Pipeline pipeline(accelerator, layers, pipeline_options(schedule));
  const Tensor x = torch::randn({kMicroBatches, 16});
  const auto clear = [](const std::vector<Tensor>& parameters) {
    for (const Tensor& each : parameters) each.mutable_grad().reset();
  };
  const Interleaved times = interleave(
      kBlocks,
      kCalls,
      [&] {
        pipeline.step(x, x, &square_mean);
        clear(pipeline.parameters());
      },
      [&] {
        for (const Tensor& each : x.chunk(kMicroBatches))
          (square_mean(whole->forward(each), each) / kMicroBatches).backward();
        clear(whole->parameters());
      });
  const double stages = schedule.num_chunks * kMicroBatches;
  return {
      (median(times.ours) - median(times.baseline)) / stages,
      median(times.baseline) / stages};
}

// The model of benchmarks/peers/pipeline.py.

constexpr std::int64_t kWidth = 512, kRows = 256;

struct BlockImpl : nn::Module {
  Tensor forward(const Tensor& x) { return torch::relu(linear(x)); }
  nn::Linear linear = register_module("linear", nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Block);

Measured measure_step(int ranks) {
  at::set_num_threads(1);
  const Accelerator accelerator(options_of(ranks));
  PipelineLayers layers;
  for (int i = 0; i < kLayers; ++i)
    layers.add("layer" + std::to_string(i), Block());
  const Pipeline pipeline(accelerator, layers, pipeline_options({"1F1B"}));
  torch::optim::SGD sgd(pipeline.parameters(), 1e-3);
  const auto optimizer = accelerator.prepare(sgd);
  const Tensor x = torch::randn({kRows, kWidth});
  const double seconds = time_of(accelerator.world(), 3 * kSteps, [&] {
    optimizer.zero_grad();
    pipeline.step(x, x, &square_mean);
    optimizer.step();
  });
  return {seconds * 1e3, 0};
}

struct Case {
  std::string metric;
  std::string unit;
  int num_ranks;
  std::function<Measured()> run;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Schedule& schedule : schedules()) {
    const auto with = [&](Measured (*measure)(const Schedule&)) {
      return [schedule, measure] { return measure(schedule); };
    };
    all.push_back(
        {schedule.name + "_bubble_over_theory",
         "",
         kRanks,
         with(&measure_bubble)});
    all.push_back(
        {schedule.name + "_stage_overhead_us",
         "us",
         1,
         with(&measure_overhead)});
    all.push_back(
        {schedule.name + "_peak_over_bound",
         "MB",
         kRanks,
         with(&measure_peak)});
  }
  for (const int ranks : {2, 4}) {
    all.push_back(
        {"step_" + std::to_string(ranks) + "_ranks", "ms", ranks, [ranks] {
           return measure_step(ranks);
         }});
  }
  return all;
}

}  // namespace

// PIPELINE_METRICS selects the metrics whose names contain it.
int main() {
  const char* const wanted = std::getenv("PIPELINE_METRICS");
  for (const Case& each : cases()) {
    if (wanted != nullptr && each.metric.find(wanted) == std::string::npos)
      continue;
    const std::string file =
        "/tmp/pipeline_" + std::to_string(getuid()) + "_" + each.metric;
    launch_function(
        [&] {
          const Measured found = each.run();
          // A single process runs without a launcher, so RANK is not set.
          const char* const rank = std::getenv("RANK");
          if (rank != nullptr && rank != std::string_view("0")) return;
          std::ofstream(file) << found.value << ' ' << found.baseline;
        },
        {.num_processes = each.num_ranks, .name = each.metric, .cpu = true});
    Measured found;
    // Ranks run this program too, but do not report.
    if (!(std::ifstream(file) >> found.value >> found.baseline)) continue;
    std::remove(file.c_str());
    report(
        {"pipeline",
         each.metric,
         found.value,
         each.unit,
         found.baseline,
         found.baseline > 0 ? found.value / found.baseline : 0,
         kSteps});
  }
}
