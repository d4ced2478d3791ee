// Compares the simulator of src/planning/simulation with real runs whose layers
// sleep for known times: pipelines of four ranks, sharded units whose gathers
// hide behind layers, ring attention, and tokens sent to experts behind a
// shared expert. Except in the ring, processors do nothing but send.
// SIMULATOR_CASES selects cases (comma-separated).
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <time.h>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "planning/pipeline/schedule.h"
#include "planning/simulation/replay.h"
#include "report.h"
#include "sleeping.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using accelerate::detail::PipelineAction;
using accelerate::detail::PipelineActionKind;
using accelerate::detail::PipelineSchedule;
using accelerate::detail::RankPrograms;
using accelerate::detail::Replay;
using at::Tensor;
using benchmarks::mean_over;
using benchmarks::Sleeping;
using benchmarks::Slept;
using benchmarks::slept;

constexpr int kRanks = 4;
constexpr int kSteps = 7;

/// Measurements of a run, and the simulator's predictions.
struct Compared {
  double seconds = 0;
  double predicted_seconds = 0;
  /// The share of time in which a rank does not sleep.
  double idle = 0;
  double predicted_idle = 0;
};

/// Processor seconds of a step.
struct ProcessorTime {
  /// On the thread that computes.
  double own = 0;
  /// On threads that carry messages meanwhile.
  double others = 0;
};
/// Processor time of the steps that `time_of` ran last.
ProcessorTime used;

double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) +
      1e-9 * static_cast<double>(now.tv_nsec);
}

double time_of(
    const World& world,
    const std::function<void()>& step,
    int num_steps = kSteps) {
  bool is_first = true;
  const double seconds = benchmarks::time_of(world, num_steps, [&] {
    const double own = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    const double all = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (is_first) used = {};
    step();
    if (std::exchange(is_first, false)) return;
    const double own_taken = clock_seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    const double all_taken = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - all;
    used.own += own_taken / num_steps;
    used.others += (all_taken - own_taken) / num_steps;
  });
  return seconds;
}

// Names sleep in the replay; other work has other names.
constexpr const char* kSleep = "sleep";

Compared compare(
    const World& world,
    double seconds,
    const Slept& measured,
    const RankPrograms& programs,
    double processors_per_rank = 1) {
  const double busy =
      mean_over(world, (measured.forward + measured.backward) / kSteps);
  // Seconds of work, not the time it takes beside other users of a processor.
  double predicted_busy = 0;
  for (const auto& instructions : programs.ranks()) {
    for (const auto& each : instructions)
      if (each.what == kSleep) predicted_busy += each.amount;
  }
  predicted_busy /= static_cast<double>(programs.ranks().size());
  const Replay replay = accelerate::detail::replay(programs);
  return {
      seconds,
      replay.time,
      1 - busy / seconds / processors_per_rank,
      1 - predicted_busy / replay.time / processors_per_rank};
}

/// Seconds that a computation sleeps, and seconds of other work.
struct Cost {
  double sleep = 0;
  double rest = 0;
};

void add_compute(
    RankPrograms& programs,
    std::size_t rank,
    std::size_t processor,
    const Cost& cost) {
  programs.compute(rank, processor, cost.rest, "rest");
  programs.compute(rank, processor, cost.sleep, kSleep);
}

// A pipeline of eight layers.

constexpr int kLayers = 8;
constexpr int kMicroBatches = 8;
constexpr double kLayerSeconds = 4e-3;

RankPrograms pipeline_programs(
    const PipelineSchedule& schedule,
    const Cost& forward,
    const Cost& backward,
    double latency) {
  RankPrograms programs(kRanks);
  std::vector<std::size_t> processors;
  for (int rank = 0; rank < kRanks; ++rank)
    processors.push_back(programs.add_resource({.name = "processor"}));
  std::map<std::tuple<int, int, bool>, std::size_t> messages;
  const auto message = [&](int stage, int micro_batch, bool is_gradient) {
    const auto [place, is_new] =
        messages.try_emplace({stage, micro_batch, is_gradient}, 0);
    if (is_new) {
      place->second =
          programs.add_message({.kind = "pipeline", .latency = latency});
    }
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
      add_compute(programs, r, processors[r], is_forward ? forward : backward);
      if (is_forward ? stage < last : stage > 0)
        programs.begin(r, message(stage, action.micro_batch, !is_forward));
    }
  }
  return programs;
}

// Seconds for a small tensor to reach the next rank: the time of a trip around
// all ranks, which sleep meanwhile as in a step, over their number.
double message_seconds(const World& world) {
  const Group group = world.group();
  const Tensor token = torch::zeros({1, 16});
  const int next = (world.rank() + 1) % kRanks;
  const int previous = (world.rank() + kRanks - 1) % kRanks;
  const double around = time_of(world, [&] {
    if (world.rank() > 0) group.recv(token, previous);
    group.send(token, next);
    if (world.rank() == 0) group.recv(token, previous);
  });
  return around / kRanks;
}

// Seconds of work in one forward and backward of a stage without its sleep,
// from a step of layers that do not sleep on a single rank.
double awake_seconds(const std::string& name, int num_chunks) {
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1, .device = at::kCPU};
  const Accelerator accelerator(options);
  PipelineLayers layers;
  const int count = kLayers / kRanks;
  for (int i = 0; i < count; ++i)
    layers.add("layer" + std::to_string(i), Sleeping(16, 0));
  const Pipeline pipeline(
      accelerator,
      layers,
      {.schedule = parse_pipeline_schedule(name),
       .num_chunks = num_chunks,
       .num_micro_batches = kMicroBatches});
  const Tensor x = torch::randn({kMicroBatches, 16});
  const double seconds = time_of(accelerator.world(), [&] {
    pipeline.step(
        x, x, [](const Tensor& y, const Tensor&) { return y.square().mean(); });
  });
  return seconds / kMicroBatches / num_chunks;
}

Compared run_pipeline(const std::string& name, int num_chunks) {
  AcceleratorOptions options;
  options.parallel.pipeline = kRanks;
  const Accelerator accelerator(options);
  const World& world = accelerator.world();
  PipelineLayers layers;
  for (int i = 0; i < kLayers; ++i)
    layers.add("layer" + std::to_string(i), Sleeping(16, kLayerSeconds));
  const Pipeline pipeline(
      accelerator,
      layers,
      {.schedule = parse_pipeline_schedule(name),
       .num_chunks = num_chunks,
       .num_micro_batches = kMicroBatches});
  const Tensor x = torch::randn({kMicroBatches, 16});
  const double seconds = time_of(world, [&] {
    pipeline.step(
        x, x, [](const Tensor& y, const Tensor&) { return y.square().mean(); });
  });
  const Slept measured = slept;
  const double latency = message_seconds(world);
  const double awake = mean_over(world, awake_seconds(name, num_chunks));
  const double calls = kSteps * kMicroBatches * num_chunks;
  return compare(
      world,
      seconds,
      measured,
      pipeline_programs(
          accelerate::detail::make_pipeline_schedule(
              accelerate::parse_pipeline_schedule(name),
              kRanks,
              kMicroBatches,
              num_chunks),
          {mean_over(world, measured.forward / calls), awake / 3},
          {mean_over(world, measured.backward / calls), awake * 2 / 3},
          latency));
}

// Sharded units, gathered one ahead.

constexpr std::int64_t kUnitWidth = 768;
constexpr int kUnits = 6;

// Measures a step whose units sleep `sleep` seconds.
double sharded_step(double sleep, Slept& measured) {
  FullyShardedDataParallelOptions sharding;
  sharding.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
  sharding.transformer_cls_names_to_wrap = {"Sleeping"};
  AcceleratorOptions options;
  options.parallel.shard = kRanks;
  options.parallel.fully_sharded = sharding;
  const Accelerator accelerator(options);
  nn::Sequential net;
  for (int i = 0; i < kUnits; ++i) net->push_back(Sleeping(kUnitWidth, sleep));
  const Tensor x = torch::randn({1, kUnitWidth});
  const auto model = accelerator.prepare(net);
  const double seconds = time_of(accelerator.world(), [&] {
    accelerator.backward(model(x).square().mean());
    model.zero_grad();
  });
  measured = slept;
  return seconds;
}

// How long Linux (6.15 and later) lets a thread run on one of two processors
// before a waiting one gets its turn: 0.7 ms per doubling of processors.
constexpr double kTimeSlice = 1.4e-3;
// Where all threads compute and none has just been woken, turns end with a tick
// of the clock (CONFIG_HZ of 250, as in most kernels).
constexpr double kTick = 4e-3;

/// Costs of a unit: processor seconds of the computing thread besides its
/// sleep, and processor seconds of carrying its parameters or gradients.
struct UnitCosts {
  Cost forward;
  Cost backward;
  double message = 0;
};

// Adds the processors with which all ranks compute and carry messages.
std::size_t add_processors(RankPrograms& programs, double turn) {
  return programs.add_resource(
      {.name = "processors",
       .capacity = static_cast<double>(std::thread::hardware_concurrency()),
       .most_per_task = 1,
       .turn = turn});
}

double processors_per_rank() {
  const auto processors =
      static_cast<double>(std::thread::hardware_concurrency());
  return std::min(1.0, processors / kRanks);
}

RankPrograms sharded_programs(const UnitCosts& costs) {
  RankPrograms programs(kRanks);
  const std::size_t processors = add_processors(programs, kTimeSlice);
  const std::size_t sleeping = programs.add_resource(
      {.name = "sleep", .capacity = kRanks, .most_per_task = 1});
  const auto add_message = [&] {
    return programs.add_message(
        {.kind = "units",
         .num_senders = kRanks,
         .flows = std::vector<accelerate::detail::Flow>(
             kRanks, {costs.message, {processors}})});
  };
  // One gather fewer, since the last unit stays for the backward.
  std::vector<std::size_t> gathers(2 * kUnits - 1), reductions(kUnits);
  std::generate(gathers.begin(), gathers.end(), add_message);
  std::generate(reductions.begin(), reductions.end(), add_message);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    auto next = gathers.begin();
    programs.begin(rank, *next);
    for (int i = 0; i < kUnits; ++i) {
      programs.wait(rank, *next);
      if (i + 1 < kUnits) programs.begin(rank, *++next);
      programs.compute(rank, processors, costs.forward.rest, "rest");
      programs.compute(rank, sleeping, costs.forward.sleep, kSleep);
    }
    // A unit is read, and the next one gathered, after its sleep.
    for (int i = 0; i < kUnits; ++i) {
      programs.compute(rank, sleeping, costs.backward.sleep, kSleep);
      if (i > 0) programs.wait(rank, *next);
      if (i + 1 < kUnits) programs.begin(rank, *++next);
      programs.compute(rank, processors, costs.backward.rest, "rest");
      programs.begin(rank, reductions[static_cast<std::size_t>(i)]);
    }
    for (const std::size_t id : reductions) programs.wait(rank, id);
  }
  return programs;
}

Compared run_sharded() {
  Slept measured;
  const double seconds = sharded_step(20e-3, measured);
  const ProcessorTime taken = used;
  const Accelerator accelerator;
  const World& world = accelerator.world();
  const double own = mean_over(world, taken.own) / kUnits;
  const double others = mean_over(world, taken.others) / (3 * kUnits - 1);
  const double calls = kSteps * kUnits;
  return compare(
      world,
      seconds,
      measured,
      sharded_programs(
          {{mean_over(world, measured.forward / calls), own / 3},
           {mean_over(world, measured.backward / calls), own * 2 / 3},
           others}));
}

// Ring attention: each block of keys and values is sent while the previous one
// is used. Attention cannot sleep: ranks share the processors, and are idle
// where no processor computes attention.

constexpr std::int64_t kHeads = 8, kHeadSize = 64;
constexpr int kRingSteps = 4 * kSteps;

/// Processor seconds of each call of attention on this thread, recorded by the
/// run itself.
std::vector<double> attention_taken;

struct AttentionBegan final : at::ObserverContext {
  double at = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
};

at::RecordFunctionCallback attention_recorder() {
  at::RecordFunctionCallback recorder(
      [](const at::RecordFunction& function)
          -> std::unique_ptr<at::ObserverContext> {
        return std::string_view(function.name())
                    .find("dot_product_flash_attention") !=
                std::string_view::npos
            ? std::make_unique<AttentionBegan>()
            : nullptr;
      },
      [](const at::RecordFunction&, at::ObserverContext* began) {
        if (began == nullptr) return;
        attention_taken.push_back(
            clock_seconds(CLOCK_THREAD_CPUTIME_ID) -
            static_cast<AttentionBegan*>(began)->at);
      });
  return recorder.scopes({at::RecordScope::FUNCTION});
}

/// Processor seconds of a step: attention on each block, everything else on
/// that thread, and threads that carry messages.
struct RingStep {
  double attention[kRanks] = {};
  double rest = 0;
  double others = 0;
};
static_assert(sizeof(RingStep) == (kRanks + 2) * sizeof(double));

RingStep traced(const std::function<void()>& step) {
  const double own = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
  const double all = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
  attention_taken.clear();
  step();
  RingStep taken;
  taken.rest = clock_seconds(CLOCK_THREAD_CPUTIME_ID) - own;
  taken.others = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - all - taken.rest;
  TORCH_CHECK(attention_taken.size() == kRanks, "one call for each block");
  std::copy(attention_taken.begin(), attention_taken.end(), taken.attention);
  for (const double each : taken.attention) taken.rest -= each;
  return taken;
}

// Each message goes from a block's owner to the rank that reads it in that
// step.
RankPrograms ring_programs(const std::vector<RingStep>& ranks) {
  RankPrograms programs(kRanks);
  const std::size_t processors = add_processors(programs, kTick);
  std::map<std::pair<int, int>, std::size_t> messages;
  const auto to = [&](int reader, int step) {
    reader = (reader + kRanks) % kRanks;
    const auto [place, is_new] = messages.try_emplace({reader, step}, 0);
    if (is_new) {
      const double seconds =
          ranks[static_cast<std::size_t>(reader)].others / (kRanks - 1);
      place->second = programs.add_message(
          {.kind = "ring",
           .num_senders = 2,
           .flows = {{seconds, {processors}}}});
    }
    return place->second;
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (int step = 0; step < kRanks; ++step) {
      if (step > 1) programs.wait(r, to(rank + step - 1, step - 1));
      if (step > 0) programs.wait(r, to(rank, step));
      if (step + 1 < kRanks) {
        programs.begin(r, to(rank, step + 1));
        programs.begin(r, to(rank + step + 1, step + 1));
      }
      add_compute(
          programs,
          r,
          processors,
          {ranks[r].attention[step], ranks[r].rest / kRanks});
    }
    programs.wait(r, to(rank + kRanks - 1, kRanks - 1));
  }
  return programs;
}

// Medians over the traced steps, `steps[rank]`.
Compared compare_steps(
    const World& world,
    double seconds,
    const std::vector<std::vector<RingStep>>& steps) {
  std::vector<double> times, measured, predicted;
  for (std::size_t i = 0; i < steps[0].size(); ++i) {
    std::vector<RingStep> ranks;
    Slept attention;
    for (const std::vector<RingStep>& rank : steps) {
      ranks.push_back(rank[i]);
      for (const double each : rank[i].attention)
        attention.forward += each * kSteps / kRanks;
    }
    const Compared found = compare(
        world, seconds, attention, ring_programs(ranks), processors_per_rank());
    times.push_back(found.predicted_seconds);
    measured.push_back(found.idle);
    predicted.push_back(found.predicted_idle);
  }
  return {
      seconds,
      benchmarks::median(times),
      benchmarks::median(measured),
      benchmarks::median(predicted)};
}

// Runs ring attention with `positions` positions on each rank.
Compared run_ring(std::int64_t positions) {
  const Accelerator accelerator;
  const World& world = accelerator.world();
  const Group group = world.group();
  const torch::NoGradGuard no_grad;
  at::set_num_threads(1);
  const auto random = [positions] {
    return torch::randn({1, kHeads, positions, kHeadSize});
  };
  const Tensor query = random(), key = random(), value = random();
  const SequenceShards shards(positions * kRanks, kRanks);
  const at::CallbackHandle recorder =
      at::addThreadLocalCallback(attention_recorder());
  std::vector<RingStep> own;
  const auto step = [&] {
    static_cast<void>(ring_attention(
        query,
        key,
        value,
        group,
        shards,
        {.rotation = KeyValueRotation::alltoall}));
  };
  const double seconds =
      time_of(world, [&] { own.push_back(traced(step)); }, kRingSteps);
  at::removeCallback(recorder);
  own.erase(own.begin());  // not timed either
  std::vector<std::vector<RingStep>> steps;
  for (const Tensor& rank : group.all_gather(torch::from_blob(
           own.data(), {kRingSteps, kRanks + 2}, torch::kDouble))) {
    const auto* const first =
        reinterpret_cast<const RingStep*>(rank.const_data_ptr<double>());
    steps.emplace_back(first, first + kRingSteps);
  }
  return compare_steps(world, seconds, steps);
}

// Tokens sent to experts behind a shared expert.

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
  // Time of both exchanges, the router and the products of both kinds of
  // experts.
  const double rest = time_of(world, [&] { static_cast<void>(empty(x)); });
  nn::Linear product(kFeatures, kFeatures);
  const double one =
      time_of(world, [&] { static_cast<void>(product->forward(x)); });
  const double exchange = std::max(0.0, rest - 2 * one) / 2;
  const auto model = accelerator.prepare(sleeping);
  const double seconds = time_of(world, [&] { static_cast<void>(model(x)); });
  const Slept measured = slept;
  const double all = mean_over(world, measured.forward / kSteps);
  RankPrograms programs(1);
  const std::size_t processor = programs.add_resource({.name = "processor"});
  const auto message = [&] {
    return programs.add_message({.kind = "experts", .latency = exchange});
  };
  const std::size_t there = message(), back = message();
  programs.begin(0, there);
  add_compute(programs, 0, processor, {all * 2 / 3, one});
  programs.wait(0, there);
  add_compute(programs, 0, processor, {all / 3, one});
  programs.begin(0, back);
  programs.wait(0, back);
  return compare(world, seconds, measured, programs);
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
      {"ring", [] { return run_ring(768); }},
      {"short_ring", [] { return run_ring(256); }},
      {"experts", run_experts}};
  const char* const wanted = std::getenv("SIMULATOR_CASES");
  for (const Case& each : cases) {
    if (wanted != nullptr &&
        ("," + std::string(wanted) + ",").find("," + each.name + ",") ==
            std::string::npos)
      continue;
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
