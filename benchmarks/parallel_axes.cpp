// Layers that ranks split and sequences that they divide: the bytes each rank
// sends, compared with those of the published algorithms; the peak memory of a
// divided sequence; what a degree of 1 costs; and steps on 2 and 4 ranks,
// compared with PyTorch's (benchmarks/peers/parallel_axes.py).
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "memory.h"
#include "parallel_axes.h"
#include "report.h"
#include "support/run_counted.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using accelerate::detail::TrafficCounter;
using at::Tensor;
using benchmarks::in_processes;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 512, kHeads = 8, kTime = 256, kBatch = 4;
constexpr int kLayers = 4;

/// Derives the number of heads from the size of its projections.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width)
      : norm1(nn::LayerNormOptions({width})),
        norm2(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        out(width, width),
        up(width, 4 * width),
        down(4 * width, width),
        head_size(width / kHeads) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) {
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto heads = [&](const Tensor& part) {
      return part.unflatten(-1, {-1, head_size}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(parts[0]),
        heads(parts[1]),
        heads(parts[2]),
        {},
        0,
        /*is_causal=*/true);
    const Tensor y = x + out(mixed.transpose(1, 2).flatten(-2));
    return y + down(torch::gelu(up(norm2(y))));
  }
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, out, up, down;
  std::int64_t head_size;
};
TORCH_MODULE(Block);

nn::Sequential blocks(std::int64_t width, int num_layers) {
  nn::Sequential net;
  for (int i = 0; i < num_layers; ++i) net->push_back(Block(width));
  return net;
}

ParallelizePlan plan(std::int64_t width) {
  return {
      {"*.qkv",
       ColwiseParallel{
           .num_heads = kHeads, .projections = {width, width, width}}},
      {"*.out", RowwiseParallel{.num_heads = kHeads}},
      {"*.up", ColwiseParallel{}},
      {"*.down", RowwiseParallel{}}};
}

AcceleratorOptions split_over(int num_ranks) {
  AcceleratorOptions options;
  options.parallel.tensor = num_ranks;
  options.parallel.parallelize_plan = plan(kWidth);
  return options;
}

AcceleratorOptions divided_over(int num_ranks) {
  AcceleratorOptions options;
  options.parallel.context = num_ranks;
  return options;
}

// Runs `rank` with a counter of the bytes it sends; returns rank 0's count.
double bytes_sent(
    int num_ranks,
    const std::function<void(const WorldOptions&, TrafficCounter&)>& rank) {
  double bytes = 0;
  accelerate::testing::run_counted(
      num_ranks, [&](const WorldOptions& options, TrafficCounter& counter) {
        rank(options, counter);
        if (*options.rank == 0) bytes = counter.total().bytes;
      });
  return bytes;
}

void report_bytes(const std::string& metric, double bytes, double theory) {
  benchmarks::report(
      {"parallel_axes",
       metric,
       bytes / theory,
       "x",
       theory / 1e6,
       bytes / theory,
       1});
}

// A block has two pairs of layers, each of which sums activations once in
// forward and once in backward.
void measure_tensor_bytes(int num_ranks) {
  const double bytes = bytes_sent(
      num_ranks, [&](const WorldOptions& world, TrafficCounter& counter) {
        AcceleratorOptions options = split_over(num_ranks);
        options.world = world;
        const Accelerator accelerator(options);
        auto net = blocks(kWidth, kLayers);
        auto model = accelerator.prepare(net);
        // Gradients also flow to the first layer, as they would below an
        // embedding.
        const Tensor x = torch::randn({kBatch, kTime, kWidth}).requires_grad_();
        counter.reset();
        accelerator.backward(model(x).pow(2).mean());
      });
  const double activations = 4.0 * kBatch * kTime * kWidth;
  report_bytes(
      "tensor_bytes_over_theory_" + std::to_string(num_ranks),
      bytes,
      4.0 * kLayers * 2 * activations * (num_ranks - 1) / num_ranks);
}

// Keys and values are sent in forward and in backward, and their gradients in
// backward, each to or from every other rank.
void measure_context_bytes(int num_ranks, bool exchanges_heads) {
  const std::int64_t local = kTime / num_ranks, size = kWidth / kHeads;
  const double bytes = bytes_sent(
      num_ranks, [&](const WorldOptions& options, TrafficCounter& counter) {
        const World world(options);
        const SequenceShards shards(kTime, num_ranks);
        std::vector<Tensor> inputs;
        for (int i = 0; i < 3; ++i)
          inputs.push_back(
              torch::randn({kBatch, kHeads, local, size}).requires_grad_());
        counter.reset();
        const auto attention =
            exchanges_heads ? &ulysses_attention : &ring_attention;
        attention(
            inputs[0],
            inputs[1],
            inputs[2],
            world.group(),
            shards,
            {.rotation = KeyValueRotation::alltoall})
            .sum()
            .backward();
      });
  const double block = 4.0 * kBatch * kHeads * local * size;
  const int others = num_ranks - 1;
  report_bytes(
      (exchanges_heads ? "ulysses_bytes_over_theory_"
                       : "context_bytes_over_theory_") +
          std::to_string(num_ranks),
      bytes,
      exchanges_heads ? 8 * block * others / num_ranks : 6 * block * others);
}

// Keeps weights, whose gradients pass through memory, small next to
// activations.
constexpr std::int64_t kNarrow = 256;

// Returns the peak memory, above that of an idle rank, of blocks on a sequence
// of `time` positions, in bytes; negative except on the first rank.
double peak_of_sequence(int num_ranks, std::int64_t time) {
  const Accelerator accelerator(divided_over(num_ranks));
  auto net = blocks(kNarrow, kLayers);
  auto model = accelerator.prepare(net);
  const auto step = [&](std::int64_t length) {
    const Tensor positions = torch::arange(length);
    const ContextParallelScope sequence = accelerator.maybe_context_parallel(
        {positions}, {0}, {}, {.rotation = KeyValueRotation::alltoall});
    const Tensor x = torch::randn({1, positions.size(0), kNarrow});
    accelerator.backward(model(x).pow(2).mean());
  };
  // Warms up code, gradients, buckets and the transport's buffers.
  for (int i = 0; i < 3; ++i) step(64);
  const double idle = benchmarks::memory_of_process("VmRSS");
  benchmarks::forget_peak();
  step(time);
  const double peak = benchmarks::memory_of_process("VmHWM") - idle;
  return accelerator.is_main_process() ? peak : -1;
}

void measure_peak() {
  constexpr int kRanks = 4;
  constexpr std::int64_t kLong = 4096;
  const auto whole =
      in_processes(1, "peak_1", [] { return peak_of_sequence(1, kLong); });
  const auto divided = in_processes(
      kRanks, "peak_4", [] { return peak_of_sequence(kRanks, kLong); });
  if (!whole || !divided) return;
  const double blocks_of_two = 2 * 2 * 4.0 * kLong / kRanks * kNarrow;
  const double share = *whole / kRanks;
  benchmarks::report(
      {"parallel_axes",
       "context_peak_over_bound",
       (*divided - blocks_of_two) / share,
       "x",
       share / 1e6,
       (*divided - blocks_of_two) / share,
       1});
}

// A step of a small model, plain and with degrees of 1.
void measure_one_rank() {
  at::set_num_threads(1);
  const auto make_step = [](const Accelerator& accelerator, bool is_divided) {
    auto net =
        nn::Sequential(nn::Linear(64, 64), nn::GELU(), nn::Linear(64, 10));
    const auto sgd =
        std::make_shared<torch::optim::SGD>(net->parameters(), 1e-3);
    auto prepared = accelerator.prepare(net, *sgd);
    return [prepared, net, sgd, is_divided, &accelerator]() mutable {
      auto& [model, optimizer] = prepared;
      const Tensor x = torch::ones({32, 64});
      std::optional<ContextParallelScope> sequence;
      if (is_divided)
        sequence.emplace(accelerator.maybe_context_parallel({x}, {0}));
      optimizer.zero_grad();
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
    };
  };
  const Accelerator plain;
  AcceleratorOptions options = divided_over(1);
  options.parallel.tensor = 1;
  options.parallel.parallelize_plan =
      ParallelizePlan{{"0", ColwiseParallel{}}, {"2", RowwiseParallel{}}};
  const Accelerator divided(options);
  auto baseline = make_step(plain, false);
  auto ours = make_step(divided, false);
  auto scoped = make_step(divided, true);
  constexpr int kBlocks = 61, kCalls = 60;
  std::vector<double> times, base, with_scope;
  const auto block = [](auto& step) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) step();
    return std::chrono::duration<double, std::micro>(Clock::now() - start)
               .count() /
        kCalls;
  };
  block(baseline), block(ours), block(scoped);
  for (int i = 0; i < kBlocks; ++i) {
    base.push_back(block(baseline));
    times.push_back(block(ours));
    with_scope.push_back(block(scoped));
  }
  // The fastest blocks, because the others measure other load on the machine.
  const double before = *std::min_element(base.begin(), base.end());
  const auto report = [&](const char* metric, std::vector<double>& found) {
    const double value = *std::min_element(found.begin(), found.end());
    benchmarks::report(
        {"parallel_axes",
         metric,
         value - before,
         "us",
         before,
         value / before,
         kBlocks});
  };
  report("one_rank_overhead_us", times);
  report("one_rank_overhead_with_scope_us", with_scope);
}

// Returns the median milliseconds per step; negative except on the first rank.
double step_ms(const AcceleratorOptions& options) {
  const Accelerator accelerator(options);
  auto net = blocks(kWidth, kLayers);
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  constexpr int kSteps = 8;
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x =
        torch::randn({kTime, kBatch, kWidth}).transpose(0, 1).contiguous();
    accelerator.world().group().barrier();
    const auto start = Clock::now();
    std::optional<ContextParallelScope> sequence;
    if (accelerator.mesh().degree(Axis::context) > 1)
      sequence.emplace(accelerator.maybe_context_parallel({x}, {1}));
    optimizer.zero_grad();
    accelerator.backward(model(x).pow(2).mean());
    optimizer.step();
    if (step > 1)
      times.push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count());
  }
  return accelerator.is_main_process() ? benchmarks::median(times) : -1;
}

void measure_steps(int num_ranks, int num_repeats) {
  const std::string ranks = std::to_string(num_ranks);
  const auto report = [&](const std::string& axis,
                          const AcceleratorOptions& options) {
    std::vector<double> times;
    for (int repeat = 0; repeat < num_repeats; ++repeat) {
      const auto time = in_processes(
          num_ranks, axis + "_" + ranks + "_" + std::to_string(repeat), [&] {
            return step_ms(options);
          });
      if (time) times.push_back(*time);
    }
    if (times.empty()) return;
    benchmarks::report(
        {"parallel_axes",
         axis + "_step_ms_" + ranks,
         benchmarks::median(times),
         "ms",
         0,
         0,
         times.size()});
  };
  report("tensor", split_over(num_ranks));
  report("context", divided_over(num_ranks));
}

}  // namespace

// The first argument selects a part: steps, memory, bytes, one_rank or encoder.
// The second is how often steps are measured, for runs that alternate with
// PyTorch's.
int main(int argc, char** argv) {
  const std::string_view chosen = argc > 1 ? argv[1] : "all";
  const int num_repeats = argc > 2 ? std::stoi(argv[2]) : 3;
  const auto is_wanted = [&](std::string_view part) {
    return chosen == "all" || chosen == part;
  };
  // Rank processes run until they reach their own call.
  if (is_wanted("steps")) {
    for (const int num_ranks : {2, 4}) measure_steps(num_ranks, num_repeats);
  }
  if (is_wanted("memory")) measure_peak();
  if (is_wanted("bytes")) {
    for (const int num_ranks : {2, 4}) {
      measure_tensor_bytes(num_ranks);
      measure_context_bytes(num_ranks, /*exchanges_heads=*/false);
      measure_context_bytes(num_ranks, /*exchanges_heads=*/true);
    }
  }
  if (is_wanted("one_rank")) measure_one_rank();
  if (is_wanted("encoder")) benchmarks::measure_encoder(num_repeats);
}
