// What the simulator of src/planning/simulation says of runs whose layers sleep
// for known times, against the same runs: pipelines of four ranks, sharded units
// whose gathers hide behind layers, tokens that travel to experts behind a
// shared one. The machine's processors have nothing to do but to send.
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "planning/pipeline/schedule.h"
#include "planning/simulation/replay.h"
#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using accelerate::detail::PipelineAction;
using accelerate::detail::PipelineActionKind;
using accelerate::detail::PipelineSchedule;
using accelerate::detail::RankPrograms;
using accelerate::detail::Replay;
using at::Tensor;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kSteps = 7;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What sleeping layers have slept, forward and backward.
struct Slept {
  double forward = 0;
  double backward = 0;
} slept;

void sleep(double seconds, double& sum) {
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  sum += seconds_since(begin);
}

struct Sleeps : torch::autograd::Function<Sleeps> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      double seconds) {
    context->saved_data["seconds"] = seconds;
    sleep(seconds, slept.forward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    sleep(2 * context->saved_data.at("seconds").toDouble(), slept.backward);
    return {gradients[0], Tensor()};
  }
};

/// A linear layer that takes its time.
struct SleepingImpl : nn::Module {
  SleepingImpl(std::int64_t width, double time)
      : linear(register_module("linear", nn::Linear(width, width))),
        seconds(time) {}
  Tensor forward(const Tensor& x) { return Sleeps::apply(linear(x), seconds); }
  nn::Linear linear;
  double seconds;
};
TORCH_MODULE(Sleeping);

/// What the ranks of a run measured, and what the simulator makes of it.
struct Compared {
  double seconds = 0;
  double predicted_seconds = 0;
  /// The share of time in which a rank sleeps not.
  double idle = 0;
  double predicted_idle = 0;
};

double mean_over(const World& world, double value) {
  const Tensor sum = torch::full({}, value, torch::kDouble);
  world.group().all_reduce(sum);
  return sum.item<double>() / world.size();
}

/// Runs `step` on all ranks; returns the median of the time that the slowest
/// takes.
double time_of(const World& world, const std::function<void()>& step) {
  step();
  std::vector<double> times;
  slept = {};
  for (int i = 0; i < kSteps; ++i) {
    world.wait_for_everyone();
    const auto begin = Clock::now();
    step();
    const Tensor most = torch::full({}, seconds_since(begin), torch::kDouble);
    world.group().all_reduce(most, ReduceOp::max);
    times.push_back(most.item<double>());
  }
  return benchmarks::median(times);
}

Compared compare(const World& world, double seconds, const Replay& replay) {
  const double busy =
      mean_over(world, (slept.forward + slept.backward) / kSteps);
  double predicted_busy = 0;
  for (std::size_t rank = 0; rank < replay.ranks.size(); ++rank)
    predicted_busy += replay.computing(rank);
  predicted_busy /= static_cast<double>(replay.ranks.size());
  return {
      seconds,
      replay.time,
      1 - busy / seconds,
      1 - predicted_busy / replay.time};
}

// A pipeline of eight layers.

constexpr int kLayers = 8;
constexpr int kMicroBatches = 8;
constexpr double kLayerSeconds = 4e-3;

Replay replay_pipeline(
    const PipelineSchedule& schedule,
    double forward,
    double backward) {
  RankPrograms programs(kRanks);
  std::vector<std::size_t> processors;
  for (int rank = 0; rank < kRanks; ++rank)
    processors.push_back(programs.add_resource({.name = "processor"}));
  std::map<std::tuple<int, int, bool>, std::size_t> messages;
  const auto message = [&](int stage, int micro_batch, bool is_gradient) {
    const auto [place, is_new] =
        messages.try_emplace({stage, micro_batch, is_gradient}, 0);
    if (is_new) place->second = programs.add_message({.kind = "pipeline"});
    return place->second;
  };
  const int last = schedule.num_stages() - 1;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (const PipelineAction& action : schedule.ranks[r]) {
      const int stage = schedule.stage(rank, action.chunk);
      const bool is_forward = action.kind == PipelineActionKind::forward;
      if (is_forward ? stage > 0 : stage < last) {
        programs.wait(
            r,
            message(
                is_forward ? stage - 1 : stage + 1,
                action.micro_batch,
                !is_forward));
      }
      programs.compute(r, processors[r], is_forward ? forward : backward, "");
      if (is_forward ? stage < last : stage > 0)
        programs.begin(r, message(stage, action.micro_batch, !is_forward));
    }
  }
  return accelerate::detail::replay(programs);
}

Compared run_pipeline(const std::string& name, int num_chunks) {
  AcceleratorOptions options;
  options.parallel.pipeline = kRanks;
  const Accelerator accelerator(options);
  PipelineLayers layers;
  for (int i = 0; i < kLayers; ++i)
    layers.add("layer" + std::to_string(i), Sleeping(16, kLayerSeconds));
  const Pipeline pipeline(
      accelerator,
      layers,
      {.schedule = name,
       .num_chunks = num_chunks,
       .num_micro_batches = kMicroBatches});
  const Tensor x = torch::randn({kMicroBatches, 16});
  const double seconds = time_of(accelerator.world(), [&] {
    pipeline.step(
        x, x, [](const Tensor& y, const Tensor&) { return y.square().mean(); });
  });
  const double calls = kSteps * kMicroBatches * num_chunks;
  return compare(
      accelerator.world(),
      seconds,
      replay_pipeline(
          accelerate::detail::make_pipeline_schedule(
              accelerate::detail::parse_pipeline_schedule(name),
              kRanks,
              kMicroBatches,
              num_chunks),
          mean_over(accelerator.world(), slept.forward / calls),
          mean_over(accelerator.world(), slept.backward / calls)));
}

// Sharded units, gathered one ahead.

constexpr std::int64_t kUnitWidth = 768;
constexpr int kUnits = 6;

Compared run_sharded() {
  FullyShardedDataParallelOptions sharding;
  sharding.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
  sharding.transformer_cls_names_to_wrap = {"Sleeping"};
  AcceleratorOptions options;
  options.parallel.shard = kRanks;
  options.parallel.fully_sharded = sharding;
  const Accelerator accelerator(options);
  nn::Sequential net;
  for (int i = 0; i < kUnits; ++i) net->push_back(Sleeping(kUnitWidth, 20e-3));
  const auto model = accelerator.prepare(net);
  const Tensor x = torch::randn({1, kUnitWidth});
  const World& world = accelerator.world();
  const double seconds = time_of(world, [&] {
    accelerator.backward(model(x).square().mean());
    model.zero_grad();
  });
  const double forward = slept.forward / kSteps / kUnits;
  const double backward = slept.backward / kSteps / kUnits;
  const Slept all = slept;
  // A unit's messages, with nothing beside them.
  const Tensor shard = torch::zeros({kUnitWidth * kUnitWidth / kRanks});
  const double gather = time_of(
      world, [&] { static_cast<void>(world.group().all_gather(shard)); });
  slept = all;

  RankPrograms programs(1);
  const std::size_t processor = programs.add_resource({.name = "processor"});
  const auto begin = [&] {
    const std::size_t id =
        programs.add_message({.kind = "units", .latency = gather});
    programs.begin(0, id);
    return id;
  };
  std::size_t gathered = begin();
  for (int i = 0; i < kUnits; ++i) {
    programs.wait(0, gathered);
    if (i + 1 < kUnits) gathered = begin();
    programs.compute(0, processor, forward, "forward");
  }
  std::vector<std::size_t> reductions;
  gathered = begin();
  for (int i = 0; i < kUnits; ++i) {
    programs.wait(0, gathered);
    if (i + 1 < kUnits) gathered = begin();
    programs.compute(0, processor, backward, "backward");
    reductions.push_back(begin());
  }
  for (const std::size_t id : reductions) programs.wait(0, id);
  return compare(world, seconds, accelerate::detail::replay(programs));
}

// Tokens that travel to experts behind a shared one.

constexpr std::int64_t kTokens = 2048, kFeatures = 512;

Compared run_experts() {
  AcceleratorOptions options;
  options.parallel.replicate = kRanks;
  options.parallel.expert = kRanks;
  const Accelerator accelerator(options);
  const World& world = accelerator.world();
  const auto layer_of = [&](double expert, double shared) {
    return ExpertLayer(ExpertLayerOptions{
        .hidden_size = kFeatures,
        .num_experts = kRanks,
        .router = {.top_k = 1},
        .make_expert =
            [expert](std::int64_t) {
              return nn::AnyModule(Sleeping(kFeatures, expert));
            },
        .make_shared_expert =
            [shared] { return nn::AnyModule(Sleeping(kFeatures, shared)); }});
  };
  const Tensor x = torch::randn({kTokens, kFeatures});
  const torch::NoGradGuard no_grad;
  ExpertLayer sleeping = layer_of(30e-3, 60e-3), awake = layer_of(0, 0);
  const auto empty = accelerator.prepare(awake);
  // Both exchanges, the router and the products.
  const double rest = time_of(world, [&] { static_cast<void>(empty(x)); });
  const auto model = accelerator.prepare(sleeping);
  const double seconds = time_of(world, [&] { static_cast<void>(model(x)); });
  const double all = slept.forward / kSteps;
  RankPrograms programs(1);
  const std::size_t processor = programs.add_resource({.name = "processor"});
  const auto message = [&] {
    return programs.add_message({.kind = "experts", .latency = rest / 2});
  };
  const std::size_t there = message(), back = message();
  programs.begin(0, there);
  programs.compute(0, processor, all * 2 / 3, "shared");
  programs.wait(0, there);
  programs.compute(0, processor, all / 3, "experts");
  programs.begin(0, back);
  programs.wait(0, back);
  return compare(world, seconds, accelerate::detail::replay(programs));
}

struct Case {
  std::string name;
  std::function<Compared()> run;
};

}  // namespace

int main() {
  const std::vector<Case> cases{
      {"gpipe", [] { return run_pipeline("GPipe", 1); }},
      {"1f1b", [] { return run_pipeline("1F1B", 1); }},
      {"interleaved_1f1b", [] { return run_pipeline("Interleaved1F1B", 2); }},
      {"sharded_units", run_sharded},
      {"experts", run_experts}};
  for (const Case& each : cases) {
    const std::string file =
        "/tmp/simulator_" + std::to_string(getuid()) + "_" + each.name;
    launch_function(
        [&] {
          const Compared found = each.run();
          if (std::getenv("RANK") != std::string("0")) return;
          std::ofstream(file)
              << found.seconds << ' ' << found.predicted_seconds << ' '
              << found.idle << ' ' << found.predicted_idle;
        },
        {.num_processes = kRanks, .name = each.name, .cpu = true});
    Compared found;
    // Ranks run this program too, but do not report.
    if (!(std::ifstream(file) >> found.seconds >> found.predicted_seconds >>
          found.idle >> found.predicted_idle))
      continue;
    std::remove(file.c_str());
    benchmarks::report(
        {"simulator",
         each.name + "_step",
         found.predicted_seconds * 1e3,
         "ms",
         found.seconds * 1e3,
         found.predicted_seconds / found.seconds,
         kSteps});
    benchmarks::report(
        {"simulator",
         each.name + "_idle",
         found.predicted_idle,
         "",
         found.idle,
         found.predicted_idle / found.idle,
         kSteps});
  }
}
