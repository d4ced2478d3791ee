// What moving tensors between the ranks of one machine costs: shared memory,
// compared with Gloo over loopback in the same processes, and for two ranks
// with the simplest all-reduce through shared memory; and training steps with
// each.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start)
      .count();
}

// The measurements of one number of ranks per metric: ours and the baseline.
struct Measured {
  double ours;
  double baseline;
};
using Results = std::map<std::string, Measured>;

std::string result_file(const std::string& name) {
  return "/tmp/bench_transport_" + std::to_string(getuid()) + "_" + name;
}

void write_results(const std::string& name, const Results& results) {
  std::ofstream file(result_file(name));
  for (const auto& [metric, times] : results)
    file << metric << ' ' << times.ours << ' ' << times.baseline << '\n';
}

// Returns nothing in a rank: ranks run this program too, but do not report.
Results read_results(const std::string& name) {
  Results results;
  std::ifstream file(result_file(name));
  std::string metric;
  Measured times{};
  while (file >> metric >> times.ours >> times.baseline)
    results[metric] = times;
  file.close();
  std::remove(result_file(name).c_str());
  return results;
}

// Microseconds per call in the fastest of several interleaved blocks.
Measured interleave_fastest(
    int num_calls,
    const std::function<void()>& meet,
    const std::function<void()>& ours,
    const std::function<void()>& baseline) {
  constexpr int kBlocks = 7;
  const auto block = [&](const std::function<void()>& call) {
    meet();
    call();
    const auto start = Clock::now();
    for (int i = 0; i < num_calls; ++i) call();
    return microseconds_since(start) / num_calls;
  };
  Measured best{.ours = 1e30, .baseline = 1e30};
  for (int i = 0; i < kBlocks; ++i) {
    best.ours = std::min(best.ours, block(ours));
    best.baseline = std::min(best.baseline, block(baseline));
  }
  return best;
}

// The simplest all-reduce of two ranks: both copy, each adds half, both copy.
class NaiveFloor {
 public:
  NaiveFloor(const World& world, std::size_t most_bytes)
      : rank_(world.rank()), bytes_(kHeader + 2 * most_bytes) {
    std::string path;
    int descriptor = -1;
    if (rank_ == 0) {
      descriptor = ::memfd_create("floor", 0);
      if (::ftruncate(descriptor, static_cast<off_t>(bytes_)) != 0)
        std::abort();
      path = "/proc/" + std::to_string(::getpid()) + "/fd/" +
          std::to_string(descriptor);
    }
    path = world.group().broadcast_bytes(path, 0);
    if (rank_ == 1) descriptor = ::open(path.c_str(), O_RDWR);
    memory_ = static_cast<char*>(::mmap(
        nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
    world.group().barrier();
    ::close(descriptor);
    most_ = most_bytes;
  }
  NaiveFloor(const NaiveFloor&) = delete;
  NaiveFloor& operator=(const NaiveFloor&) = delete;
  ~NaiveFloor() { ::munmap(memory_, bytes_); }

  void all_reduce(const at::Tensor& tensor) {
    const auto bytes = static_cast<std::size_t>(tensor.nbytes());
    auto* const first = reinterpret_cast<float*>(memory_ + kHeader);
    auto* const second = reinterpret_cast<float*>(memory_ + kHeader + most_);
    std::memcpy(rank_ == 0 ? first : second, tensor.data_ptr(), bytes);
    meet();
    const auto count = static_cast<std::size_t>(tensor.numel());
    const std::size_t half = count / 2;
    const std::size_t end = rank_ == 0 ? half : count;
    for (std::size_t i = rank_ == 0 ? 0 : half; i < end; ++i)
      first[i] += second[i];
    meet();
    std::memcpy(tensor.data_ptr(), first, bytes);
    meet();
  }

 private:
  static constexpr std::size_t kHeader = 4096;

  void meet() {
    auto* const arrived =
        reinterpret_cast<std::atomic<std::uint64_t>*>(memory_);
    target_ += 2;
    arrived->fetch_add(1);
    while (arrived->load() < target_) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

  int rank_;
  std::size_t bytes_;
  std::size_t most_ = 0;
  char* memory_ = nullptr;
  std::uint64_t target_ = 0;
};

constexpr std::int64_t kKb = 256;  // floats
const std::vector<std::pair<std::string, std::int64_t>> kSizes{
    {"4kb", 4 * kKb},
    {"64kb", 64 * kKb},
    {"4mb", 4096 * kKb},
    {"64mb", 65536 * kKb}};

int calls_for(std::int64_t count, int num_ranks) {
  const int calls = count <= 64 * kKb ? 500 : count <= 4096 * kKb ? 30 : 3;
  return std::max(1, num_ranks > 2 ? calls / 4 : calls);
}

void measure_collectives(int num_ranks, const std::string& name) {
  const World memory({.transport = "shared_memory"});
  const World gloo({.transport = "gloo"});
  const auto meet = [&] { memory.group().barrier(); };
  Results results;
  const auto compare = [&](const std::string& metric,
                           int num_calls,
                           const std::function<void(const Group&)>& call) {
    results[metric] = interleave_fastest(
        num_calls,
        meet,
        [&] { call(memory.group()); },
        [&] { call(gloo.group()); });
  };
  for (const auto& [size, count] : kSizes) {
    const at::Tensor tensor = torch::ones({count});
    const int num_calls = calls_for(count, num_ranks);
    compare("all_reduce_" + size + "_us", num_calls, [&](const Group& group) {
      group.all_reduce(tensor);
    });
    if (num_ranks > 2) continue;
    NaiveFloor floor(memory, static_cast<std::size_t>(tensor.nbytes()));
    results["all_reduce_" + size + "_over_naive_floor_us"] = interleave_fastest(
        num_calls,
        meet,
        [&] { memory.group().all_reduce(tensor); },
        [&] { floor.all_reduce(tensor); });
  }
  const at::Tensor large = torch::ones({4096 * kKb});
  const int num_calls = calls_for(4096 * kKb, num_ranks);
  compare("broadcast_4mb_us", num_calls, [&](const Group& group) {
    group.broadcast(large, 0);
  });
  compare("all_gather_4mb_us", num_calls, [&](const Group& group) {
    (void)group.all_gather(large);
  });
  compare("reduce_scatter_4mb_us", num_calls, [&](const Group& group) {
    (void)group.reduce_scatter(large);
  });
  compare("all_to_all_4mb_us", num_calls, [&](const Group& group) {
    const auto parts = large.chunk(group.size());
    (void)group.all_to_all(parts);
  });
  compare("barrier_us", 300, [](const Group& group) { group.barrier(); });
  const at::Tensor metric = torch::ones({64, 10});
  compare("gather_for_metrics_us", 200, [&](const Group& group) {
    (void)group.all_gather(metric);
  });
  if (memory.rank() == 0) write_results(name, results);
}

nn::Sequential mlp() {
  // 10.5 million parameters.
  return nn::Sequential(
      nn::Linear(1024, 3200),
      nn::ReLU(),
      nn::Linear(3200, 2048),
      nn::ReLU(),
      nn::Linear(2048, 300));
}

// Trains the model over one transport.
class Training {
 public:
  Training(const std::string& transport, const ParallelOptions& parallel)
      : accelerator_({.parallel = parallel, .world = {.transport = transport}}),
        net_(mlp()),
        adamw_(net_->parameters(), 1e-4),
        prepared_(accelerator_.prepare(net_, adamw_)) {}

  void step(const at::Tensor& x) {
    auto& [model, optimizer] = prepared_;
    optimizer.zero_grad();
    accelerator_.backward(model(x).pow(2).mean());
    optimizer.step();
  }

 private:
  Accelerator accelerator_;
  nn::Sequential net_;
  torch::optim::AdamW adamw_;
  decltype(std::declval<Accelerator&>().prepare(
      std::declval<nn::Sequential&>(),
      std::declval<torch::optim::AdamW&>())) prepared_;
};

// The same step without communication, on both ranks at once.
class Alone {
 public:
  void step(const at::Tensor& x) {
    adamw_.zero_grad();
    net_->forward(x).pow(2).mean().backward();
    adamw_.step();
  }

 private:
  nn::Sequential net_ = mlp();
  torch::optim::AdamW adamw_{net_->parameters(), 1e-4};
};

void measure_steps(const std::string& name) {
  const World world({.transport = "shared_memory"});
  const auto meet = [&] { world.group().barrier(); };
  const at::Tensor x = torch::randn({256, 1024});
  Results results;
  {
    Training memory("shared_memory", {});
    Training gloo("gloo", {});
    Alone alone;
    results["ddp_step_over_compute_us"] = interleave_fastest(
        3, meet, [&] { memory.step(x); }, [&] { alone.step(x); });
    results["ddp_step_over_gloo_us"] = interleave_fastest(
        3, meet, [&] { memory.step(x); }, [&] { gloo.step(x); });
  }
  {
    const ParallelOptions sharded{
        .fully_sharded = FullyShardedDataParallelOptions()};
    Training memory("shared_memory", sharded);
    Training gloo("gloo", sharded);
    results["fsdp_step_over_gloo_us"] = interleave_fastest(
        3, meet, [&] { memory.step(x); }, [&] { gloo.step(x); });
  }
  if (world.rank() == 0) write_results(name, results);
}

void report_all(const std::string& suffix, const Results& results) {
  for (const auto& [metric, times] : results) {
    benchmarks::report(
        {"transport",
         metric + suffix,
         times.ours,
         "us",
         times.baseline,
         times.ours / times.baseline,
         7});
  }
}

}  // namespace

int main() {
  for (const int num_ranks : {2, 4, 8}) {
    const std::string name = "collectives_" + std::to_string(num_ranks);
    launch_function(
        [&] { measure_collectives(num_ranks, name); },
        {.num_processes = num_ranks, .name = name, .cpu = true});
    report_all("_" + std::to_string(num_ranks), read_results(name));
  }
  launch_function(
      [] { measure_steps("steps"); },
      {.num_processes = 2, .name = "steps", .cpu = true});
  report_all("", read_results("steps"));
}
