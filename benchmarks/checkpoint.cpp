// Saving and loading 1.2 GB of model and AdamW state: the time that an
// asynchronous save blocks, compared with a memcpy of the same size; a
// synchronous save until it is durable, compared with dd conv=fsync on the same
// disk; loading, compared with a plain read of the files; and the memory that a
// synchronous save adds.
//
//   bench_checkpoint [DIRECTORY ON THE DISK TO MEASURE]
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "interleave.h"

namespace {

using namespace accelerate::benchmarks;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

template <class Body>
double timed(Body&& body) {
  const auto start = Clock::now();
  std::forward<Body>(body)();
  return ms_since(start);
}

// Returns the value of a line of /proc/self/status, "VmRSS:" or "VmHWM:", in
// MiB.
double memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    double kib = 0;
    if (word == key && status >> kib) return kib / 1024;
  }
  return 0;
}

// Resets VmHWM, the peak resident memory.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::uint64_t bytes_in(const fs::path& directory) {
  std::uint64_t total = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    total += entry.file_size();
  }
  return total;
}

void read_all(const fs::path& directory, std::vector<char>& buffer) {
  std::size_t used = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    while (true) {
      const ssize_t got =
          ::read(file, buffer.data() + used, buffer.size() - used);
      if (got <= 0) break;
      used += static_cast<std::size_t>(got);
    }
    ::close(file);
  }
}

void measure(const fs::path& scratch) {
  constexpr int kRounds = 5;
  fs::create_directories(scratch);
  accelerate::AcceleratorOptions options;
  options.world.logger = accelerate::Logger(
      [](const accelerate::LogRecord&) {}, accelerate::LogLevel::off);
  const accelerate::Accelerator accelerator(options);
  torch::nn::Sequential net;
  for (int i = 0; i < 24; ++i) net->push_back(torch::nn::Linear(2048, 2048));
  accelerate::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  accelerator.backward(model(torch::randn({2, 2048})).square().mean());
  optimizer.step();
  optimizer.zero_grad();

  const fs::path saved = scratch / "checkpoint";
  static_cast<void>(accelerator.save_state(saved));
  const std::uint64_t size = bytes_in(saved);
  // Touches both buffers, since a second save reuses touched memory.
  std::vector<char> from(size, 1), to(size, 2);
  accelerator.save_state(saved, {.asynchronous = true}).wait();

  std::vector<double> copies, blocked, dd, durable, reads, loads, unverified,
      extra;
  const std::string dd_command =
      "dd if=/dev/zero of=" + (scratch / "dd").string() +
      " bs=1M count=" + std::to_string(size >> 20U) + " conv=fsync 2>/dev/null";
  for (int round = 0; round < kRounds; ++round) {
    copies.push_back(timed([&] { std::memcpy(to.data(), from.data(), size); }));
    {
      const auto start = Clock::now();
      const auto ticket = accelerator.save_state(saved, {.asynchronous = true});
      blocked.push_back(ms_since(start));
      ticket.wait();
    }
    dd.push_back(timed([&] {
      if (std::system(dd_command.c_str()) != 0) std::exit(1);
    }));
    fs::remove(scratch / "dd");
    fs::remove_all(saved);
    forget_peak();
    const double before = memory("VmRSS:");
    durable.push_back(
        timed([&] { static_cast<void>(accelerator.save_state(saved)); }));
    extra.push_back(memory("VmHWM:") - before);
    // Fills the page cache, which the save bypassed, so that both read from it.
    read_all(saved, to);
    reads.push_back(timed([&] { read_all(saved, to); }));
    loads.push_back(timed([&] { accelerator.load_state(saved); }));
    unverified.push_back(
        timed([&] { accelerator.load_state(saved, {.verify = false}); }));
  }
  fs::remove_all(scratch);

  const auto say = [&](const char* metric,
                       double value,
                       const char* unit,
                       double baseline,
                       double ratio) {
    report({"checkpoint", metric, value, unit, baseline, ratio, kRounds});
  };
  say("async_block_over_memcpy",
      median(blocked) / median(copies),
      "ratio",
      median(copies),
      median(blocked) / median(copies));
  say("durable_over_dd",
      median(dd) / median(durable),
      "ratio",
      median(dd),
      median(dd) / median(durable));
  say("load_over_read",
      median(reads) / median(loads),
      "ratio",
      median(reads),
      median(reads) / median(loads));
  say("unverified_load_over_read",
      median(reads) / median(unverified),
      "ratio",
      median(reads),
      median(reads) / median(unverified));
  say("extra_memory_mb", median(extra), "MiB", 64, median(extra) / 64);
  say("async_block_ms",
      median(blocked),
      "ms",
      median(copies),
      median(blocked) / median(copies));
  say("durable_ms",
      median(durable),
      "ms",
      median(dd),
      median(durable) / median(dd));
  say("load_ms",
      median(loads),
      "ms",
      median(reads),
      median(loads) / median(reads));
  say("unverified_load_ms",
      median(unverified),
      "ms",
      median(reads),
      median(unverified) / median(reads));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    measure(argc > 1 ? argv[1] : "bench_checkpoint_scratch");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint: %s\n", error.what());
    return 1;
  }
  return 0;
}
