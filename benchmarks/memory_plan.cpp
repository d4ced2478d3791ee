// Compares the predicted memory of a rank with the measured peak of its
// resident memory, minus that of an idle rank: twelve models, replicated and
// with ZeRO-1, 2 and 3 over two CPU ranks, in fp32 and bf16, with and without
// recomputation. Plans of sharded models should be within 5 %, those of others,
// whose small blocks come from the C library's heap, within 10 %.
// First argument: runs only the models with these numbers, such as "0,5".
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "memory.h"
#include "memory_plan_models.h"
#include "report.h"

namespace {

using namespace accelerate;
using benchmarks::batch_of;
using benchmarks::Net;
using benchmarks::Shape;
using benchmarks::shapes;

constexpr int kRanks = 2;
// The second step rebuilds buckets, in memory that is not touched before
// gradients arrive; the third is like all later ones.
constexpr int kSteps = 3;

struct Run {
  MemorySplit split;
  FloatType precision;
  bool recomputes;
};

std::vector<Run> runs_of_model() {
  std::vector<Run> runs;
  for (const MemorySplit split :
       {MemorySplit::replicated,
        MemorySplit::zero_1,
        MemorySplit::zero_2,
        MemorySplit::full_shard}) {
    for (const FloatType precision : {FloatType::fp32, FloatType::bf16}) {
      for (const bool recomputes : {false, true})
        runs.push_back({split, precision, recomputes});
    }
  }
  return runs;
}

std::int64_t batch_size(const Shape& shape, const Run& run) {
  return run.precision == FloatType::fp32 ? shape.batch : shape.bf16_batch;
}

std::string name_of_run(const Shape& shape, const Run& run) {
  std::string name = shape.name + " " + std::string(name_of(run.split));
  name += run.precision == FloatType::fp32 ? " fp32" : " bf16";
  return name + (run.recomputes ? " recomputed" : "");
}

ParallelOptions parallel_options(const Run& run) {
  ParallelOptions options;
  if (run.split == MemorySplit::full_shard) {
    options.fully_sharded = FullyShardedDataParallelOptions();
  } else if (run.split != MemorySplit::replicated) {
    options.deepspeed = DeepSpeedOptions();
    options.deepspeed->zero_stage = run.split == MemorySplit::zero_1 ? 1 : 2;
  }
  if (run.recomputes)
    options.activation_checkpointing = ActivationCheckpointingOptions();
  return options;
}

Accelerator accelerator_of(const Run& run) {
  return Accelerator(
      {.mixed_precision =
           run.precision == FloatType::fp32 ? Precision::no : Precision::bf16,
       .parallel = parallel_options(run),
       .journal = false});
}

/// Returns the bytes that resident memory counts twice: parts of the other
/// rank's buckets, which a rank reduces in place.
double train(
    Accelerator& accelerator,
    const Shape& shape,
    const Run& run,
    int num_steps) {
  Net net(shape);
  torch::optim::AdamW adamw(net->parameters(), 1e-4);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < num_steps; ++step) {
    const auto x = batch_of(shape, batch_size(shape, run));
    const torch::Tensor output = model(x);
    accelerator.backward(output.to(torch::kFloat).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  accelerator.wait_for_everyone();
  const double shares = benchmarks::shares_of_others();
  accelerator.wait_for_everyone();
  return shares;
}

// The peak minus the memory of the idle process, in bytes.
double peak_of(const Shape& shape, const Run& run) {
  Accelerator accelerator = accelerator_of(run);
  accelerator.wait_for_everyone();
  benchmarks::forget_peak();
  const double idle =
      benchmarks::memory_of_process("VmRSS") - benchmarks::shares_of_others();
  const double shares = train(accelerator, shape, run, kSteps);
  return benchmarks::memory_of_process("VmHWM") - shares - idle;
}

MemoryPlan plan_of(const Shape& shape) {
  Net net(shape);
  const Accelerator accelerator({.cpu = true, .journal = false});
  return accelerate::plan_memory(
      accelerator.world(),
      net,
      batch_of(shape, 4),
      {.num_ranks = kRanks, .batch_size = shape.batch});
}

MemoryRow predict(const MemoryPlan& plan, const Shape& shape, const Run& run) {
  MemoryCase at = plan.row(run.split, run.precision, run.recomputes).at;
  at.micro_batch = batch_size(shape, run);
  return plan.row(at);
}

// The predicted and measured memory of a run.
struct Outcome {
  MemoryRow predicted;
  double peak = 0;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  const MemoryRow& row = outcome.predicted;
  return out << outcome.peak << ' ' << row.weights << ' ' << row.gradients
             << ' ' << row.optimizer_state << ' ' << row.buckets << ' '
             << row.units << ' ' << row.activations << ' ' << row.workspace
             << '\n';
}

std::istream& operator>>(std::istream& in, Outcome& outcome) {
  MemoryRow& row = outcome.predicted;
  return in >> outcome.peak >> row.weights >> row.gradients >>
      row.optimizer_state >> row.buckets >> row.units >> row.activations >>
      row.workspace;
}

// Runs on each rank, which plans like a program that trains afterwards: with
// its threads, since kernels take memory for each, and with its heap. Writes
// the highest peaks of all ranks, and the plans of the first, to `file`.
void measure(const Shape& shape, const std::string& file) {
  // Otherwise glibc's threshold grows, and freed tensors stay in its heap.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
  torch::set_num_threads(1);
  const World world;
  const std::vector<Run> runs = runs_of_model();
  // Loads LibTorch's code, and lets its libraries allocate the memory they
  // keep.
  for (const Run& run : runs) {
    Accelerator accelerator = accelerator_of(run);
    train(accelerator, shape, run, 1);
  }
  std::vector<MemoryRow> rows;
  {
    const MemoryPlan plan = plan_of(shape);
    for (const Run& run : runs) rows.push_back(predict(plan, shape, run));
  }
  std::vector<double> peaks;
  for (const Run& run : runs) peaks.push_back(peak_of(shape, run));
  const torch::Tensor highest = torch::tensor(peaks, torch::kDouble);
  world.group().all_reduce(highest, ReduceOp::max);
  if (world.rank() > 0) return;
  std::ofstream out(file);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out << Outcome{
        rows[i], highest[static_cast<std::int64_t>(i)].item<double>()};
  }
}

void print(const std::string& name, const MemoryRow& row, double peak) {
  const auto predicted = static_cast<double>(row.total());
  std::fprintf(
      stderr,
      "%-40s measured %7.2f MB, predicted %7.2f, error %6.1f %%  (w %.2f g "
      "%.2f o %.2f b %.2f u %.2f a %.2f s %.2f)\n",
      name.c_str(),
      peak / 1e6,
      predicted / 1e6,
      100 * (predicted - peak) / peak,
      static_cast<double>(row.weights) / 1e6,
      static_cast<double>(row.gradients) / 1e6,
      static_cast<double>(row.optimizer_state) / 1e6,
      static_cast<double>(row.buckets) / 1e6,
      static_cast<double>(row.units) / 1e6,
      static_cast<double>(row.activations) / 1e6,
      static_cast<double>(row.workspace) / 1e6);
}

// Errors in percent.
struct Errors {
  std::vector<double> sharded;
  std::vector<double> unsharded;
};

// The errors of a model's runs; none in a rank's process.
Errors errors_of(const Shape& shape) {
  const std::string file =
      "/tmp/memory_plan_" + std::to_string(getuid()) + "_" + shape.name;
  launch_function(
      [&] { measure(shape, file); },
      {.num_processes = kRanks, .name = shape.name, .cpu = true});
  // Ranks run this program too, and skip the other models.
  std::ifstream measured(file);
  if (!measured) return {};
  Errors errors;
  for (const Run& run : runs_of_model()) {
    Outcome outcome;
    measured >> outcome;
    const auto& [row, peak] = outcome;
    print(name_of_run(shape, run), row, peak);
    auto& kind = run.split == MemorySplit::replicated ? errors.unsharded
                                                      : errors.sharded;
    kind.push_back(100 * (static_cast<double>(row.total()) - peak) / peak);
  }
  std::remove(file.c_str());
  return errors;
}

void report(
    const std::string& metric,
    double percent,
    double limit,
    std::size_t runs) {
  benchmarks::report(
      {"memory_plan", metric, percent, "%", limit, percent / limit, runs});
}

double largest_of(std::vector<double> errors, double share) {
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  const auto count = static_cast<double>(errors.size());
  return errors[static_cast<std::size_t>(std::ceil(count * share)) - 1];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? "," + std::string(argv[1]) + "," : "";
  Errors errors;
  const auto append = [](std::vector<double>& to,
                         const std::vector<double>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (std::size_t model = 0; model < shapes().size(); ++model) {
    const std::string number = "," + std::to_string(model) + ",";
    if (!wanted.empty() && wanted.find(number) == std::string::npos) continue;
    const Errors found = errors_of(shapes()[model]);
    if (found.sharded.empty()) continue;
    report(
        "sharded_error_percent_" + shapes()[model].name,
        largest_of(found.sharded, 1),
        5,
        found.sharded.size());
    append(errors.sharded, found.sharded);
    append(errors.unsharded, found.unsharded);
  }
  if (errors.sharded.empty()) return 0;
  report(
      "sharded_error_percent_of_95_percent",
      largest_of(errors.sharded, 0.95),
      5,
      errors.sharded.size());
  report(
      "unsharded_error_percent_of_95_percent",
      largest_of(errors.unsharded, 0.95),
      10,
      errors.unsharded.size());
  append(errors.sharded, errors.unsharded);
  const double lowest =
      *std::min_element(errors.sharded.begin(), errors.sharded.end());
  report(
      "most_below_percent", std::max(-lowest, 0.0), 10, errors.sharded.size());
}
