// Reads weights from the page cache, compared with mapping or reading the bytes
// once, and from a cold disk, compared with parallel direct reads of the same
// file. Also saves and loads many tiny tensors.
//
//   bench_offload_load [GIB] [DIRECTORY ON THE DISK TO MEASURE]
//
// GIB is the size of the cold files and of the additional memory used, 4 by
// default. A run with 0.25 is quick, but its figures mean little.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "cold_files.h"
#include "direct_reads.h"
#include "interleave.h"

namespace {

namespace fs = std::filesystem;
using namespace accelerate::benchmarks;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 3;
constexpr int kWarmRounds = 7;
constexpr std::size_t kPage = 4096;
constexpr double kGiga = 1e9;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// `count` parameters of `size` floats each.
struct TensorsImpl : torch::nn::Module {
  TensorsImpl(int count, std::int64_t size) {
    for (int i = 0; i < count; ++i) {
      register_parameter(
          "tensor" + std::to_string(i), torch::zeros({size}), false);
    }
  }
};
TORCH_MODULE(Tensors);

Tensors without_memory(int count, std::int64_t size) {
  return accelerate::init_empty_weights([&] { return Tensors(count, size); });
}

/// Touches one byte of each page.
std::size_t touch(const void* data, std::size_t size) {
  const auto* const bytes = static_cast<const volatile unsigned char*>(data);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < size; i += kPage) sum += bytes[i];
  return sum;
}

std::size_t touch(const torch::nn::Module& module) {
  std::size_t sum = 0;
  for (const auto& tensor : module.parameters())
    sum += touch(tensor.const_data_ptr(), tensor.nbytes());
  return sum;
}

/// The single file that save_model() writes to a directory.
fs::path weights_in(const fs::path& directory) {
  return directory / "model.safetensors";
}

void map_once(const fs::path& file) {
  const std::size_t size = fs::file_size(file);
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  void* const data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, opened, 0);
  touch(data, size);
  ::munmap(data, size);
  ::close(opened);
}

void forget_files(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) forget(entry.path());
}

void report_times(
    const std::string& metric,
    const std::vector<double>& ours,
    const std::vector<double>& baseline) {
  const double ratio = median(ours) / median(baseline);
  report(
      {"offload",
       metric,
       ratio,
       "x",
       1e3 * median(baseline),
       ratio,
       ours.size()});
}

// Warm loads into a module without memory, which map the file, and into one
// with memory, which read it.
void measure_warm(const fs::path& scratch) {
  constexpr int kCount = 24;
  constexpr std::int64_t kSize = std::int64_t{1} << 22U;
  const fs::path directory = scratch / "warm";
  accelerate::save_model(*Tensors(kCount, kSize), directory);
  const fs::path file = weights_in(directory);
  map_once(file);
  std::vector<double> mapped, map_floor, read, read_floor;
  Tensors filled(kCount, kSize);
  Buffer buffer(fs::file_size(file) + kPage);
  read_in_parallel(file, buffer, 0);
  for (int i = 0; i < kWarmRounds; ++i) {
    map_floor.push_back(seconds_of([&] { map_once(file); }));
    Tensors module = without_memory(kCount, kSize);
    mapped.push_back(seconds_of([&] {
      accelerate::load_checkpoint_in_model(*module, directory);
      touch(*module);
    }));
    read_floor.push_back(
        seconds_of([&] { read_in_parallel(file, buffer, 0); }));
    read.push_back(seconds_of(
        [&] { accelerate::load_checkpoint_in_model(*filled, directory); }));
  }
  report_times("load_over_map", mapped, map_floor);
  report_times("load_over_read", read, read_floor);
  fs::remove_all(directory);
}

// Loads a cold file of tensors of one size with each of the load functions.
void measure_cold(
    const fs::path& scratch,
    const std::string& name,
    int count,
    std::int64_t size) {
  const fs::path directory = scratch / name;
  accelerate::AcceleratorOptions options;
  options.world.logger = accelerate::Logger(
      [](const accelerate::LogRecord&) {}, accelerate::LogLevel::off);
  const accelerate::Accelerator accelerator(options);
  Tensors filled(count, size);
  for (torch::Tensor& tensor : filled->parameters())
    tensor.requires_grad_(false);
  auto model = accelerator.prepare(filled);
  static_cast<void>(accelerator.save_state(directory / "state"));
  accelerate::save_model(
      *filled, directory / "model", {.max_shard_size = "1000GB"});
  const fs::path file = weights_in(directory / "model");
  std::vector<double> floor, model_loads, checkpoint_loads, state_loads;
  for (int i = 0; i < kRounds; ++i) {
    {
      Buffer buffer(fs::file_size(file) + kPage);
      forget_files(directory);
      floor.push_back(
          seconds_of([&] { read_in_parallel(file, buffer, O_DIRECT); }));
    }
    forget_files(directory);
    model_loads.push_back(seconds_of(
        [&] { accelerate::load_model(*filled, directory / "model"); }));
    forget_files(directory);
    checkpoint_loads.push_back(seconds_of([&] {
      accelerate::load_checkpoint_in_model(*filled, directory / "model");
    }));
    forget_files(directory);
    state_loads.push_back(
        seconds_of([&] { accelerator.load_state(directory / "state"); }));
  }
  const std::string suffix = "_" + name;
  report_times("load_cold_over_direct_read" + suffix, checkpoint_loads, floor);
  report_times("load_model_cold_over_direct_read" + suffix, model_loads, floor);
  report_times("load_state_cold_over_direct_read" + suffix, state_loads, floor);
  const double bytes = static_cast<double>(fs::file_size(file));
  report(
      {"offload",
       "load_cold_gb_per_s" + suffix,
       bytes / median(checkpoint_loads) / kGiga,
       "GB/s",
       bytes / median(floor) / kGiga,
       median(floor) / median(checkpoint_loads),
       kRounds});
  fs::remove_all(directory);
}

void measure_tiny(const fs::path& scratch, int count) {
  const fs::path directory = scratch / "tiny";
  accelerate::AcceleratorOptions options;
  options.world.logger = accelerate::Logger(
      [](const accelerate::LogRecord&) {}, accelerate::LogLevel::off);
  const accelerate::Accelerator accelerator(options);
  auto model = accelerator.prepare(Tensors(count, 4));
  std::vector<double> saved, loaded;
  for (int i = 0; i < kRounds; ++i) {
    fs::remove_all(directory);
    saved.push_back(seconds_of(
        [&] { static_cast<void>(accelerator.save_state(directory)); }));
    loaded.push_back(seconds_of([&] { accelerator.load_state(directory); }));
  }
  constexpr double kGoalSaved = 10, kGoalLoaded = 7;
  const double save_us = 1e6 * median(saved) / count;
  const double load_us = 1e6 * median(loaded) / count;
  report(
      {"offload",
       "tiny_tensors_us_saved",
       save_us,
       "us",
       kGoalSaved,
       save_us / kGoalSaved,
       kRounds});
  report(
      {"offload",
       "tiny_tensors_us_loaded",
       load_us,
       "us",
       kGoalLoaded,
       load_us / kGoalLoaded,
       kRounds});
  fs::remove_all(directory);
}

void measure(double gib, const fs::path& scratch) {
  constexpr int kMany = 64;
  constexpr double kFullGib = 4;
  constexpr int kTiny = 100'000;
  fs::create_directories(scratch);
  const auto size = static_cast<std::int64_t>(
      gib * static_cast<double>(std::int64_t{1} << 28U));
  measure_warm(scratch);
  measure_cold(scratch, "one_tensor", 1, size);
  measure_cold(scratch, "many_tensors", kMany, size / kMany);
  measure_tiny(scratch, gib < kFullGib ? kTiny / 10 : kTiny);
  fs::remove_all(scratch);
}

}  // namespace

int main(int argc, char** argv) {
  const torch::NoGradGuard no_grad;
  try {
    measure(
        argc > 1 ? std::atof(argv[1]) : 4,
        argc > 2 ? argv[2] : "bench_offload_scratch");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "offload: %s\n", error.what());
    return 1;
  }
  return 0;
}
