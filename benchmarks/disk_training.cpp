// A training step with AdamW whose parameters, gradients and moments lie on a
// disk: the optimizer's step over the time in which the same bytes are read and
// written by hand with direct I/O, the most memory of a whole step, how much of
// reading and writing computing hides, and what a step that begins in backward
// saves. And layers whose activations lie on a disk beside layers that are
// recomputed.
//
//   bench_disk_training [MILLIONS OF PARAMETERS] [DIRECTORY ON THE DISK] [step]
//
// `step` measures whole steps instead, which peers are compared with:
// forward, backward and the optimizer's step, until the disk has everything.
//
// 400 million parameters by default, in the program's directory, where they
// need 14.4 GB of room. Fewer parameters are quick, but if the buffers hold
// much of them, the figures mean little.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/save_on_disk.h>

#include "base/files/in_memory.h"
#include "base/files/scratch_file.h"
#include "base/files/transfer_queue.h"
#include "direct_reads.h"
#include "gate/disk/disk_tensors.h"
#include "gate/watched_tensor.h"
#include "memory.h"
#include "report.h"

namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using namespace accelerate::benchmarks;
using accelerate::detail::DiskTensors;
using accelerate::detail::ScratchFile;
using accelerate::detail::TransferQueue;

constexpr int kRounds = 5;
constexpr std::int64_t kWidth = 2048;
constexpr double kElementBytes = 4;
constexpr double kMega = 1e6;
// Parameters, gradients and moments.
constexpr double kDiskElements = 4;
// Both files have buffers: that of parameters, and that of gradients and moments.
constexpr std::int64_t kBufferElements = std::int64_t{4} << 20U;
constexpr int kBufferCount = 16;
constexpr double kBufferBytes =
    2.0 * kBufferElements * kBufferCount * kElementBytes;

template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Reads parameters, two moments and gradients, and writes all but the
/// gradients, as a step of AdamW does, but computes nothing.
class ByHand {
 public:
  ByHand(const fs::path& directory, std::uint64_t num_elements)
      : file_(directory, "what is read and written by hand"),
        bytes_(ScratchFile::rounded(num_elements * sizeof(float))) {
    for (std::uint64_t& begin : begins_) begin = file_.allocate(bytes_);
    fill();
  }

  /// Threads take pieces in turn.
  void move_with_threads() {
    std::atomic<std::uint64_t> next = 0;
    std::atomic<bool> has_failed = false;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t at = next.fetch_add(kPiece); at < bytes_;
             at = next.fetch_add(kPiece)) {
          for (int tensor = 0; tensor < kRead; ++tensor) {
            if (!move(piece(thread, tensor, at), tensor, at, false))
              has_failed = true;
          }
          for (int tensor = 0; tensor < kWritten; ++tensor) {
            if (!move(piece(thread, tensor, at), tensor, at, true))
              has_failed = true;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (has_failed) throw std::runtime_error("direct reads or writes failed");
  }

  /// The library's queue reads pieces ahead and writes behind.
  void move_with_queue() {
    std::array<std::vector<TransferQueue::Ticket>, kSlots> begun;
    const auto wait = [&](int slot) {
      for (const auto& ticket : begun[static_cast<std::size_t>(slot)]) {
        if (queue_.wait(ticket) != 0)
          throw std::runtime_error("the queue failed to read or write");
      }
      begun[static_cast<std::size_t>(slot)].clear();
    };
    const std::uint64_t num_pieces = (bytes_ + kPiece - 1) / kPiece;
    for (std::uint64_t i = 0; i < num_pieces + kAhead; ++i) {
      if (i < num_pieces) {
        const int slot = static_cast<int>(i % kSlots);
        const std::uint64_t at = i * kPiece;
        wait(slot);  // until the previous piece is written
        for (int tensor = 0; tensor < kRead; ++tensor) {
          begun[static_cast<std::size_t>(slot)].push_back(
              queue_.read(file_, place(tensor, at), piece(slot, tensor, at)));
        }
      }
      if (i >= kAhead) {
        const int slot = static_cast<int>((i - kAhead) % kSlots);
        const std::uint64_t at = (i - kAhead) * kPiece;
        wait(slot);  // until it is read
        for (int tensor = 0; tensor < kWritten; ++tensor) {
          begun[static_cast<std::size_t>(slot)].push_back(
              queue_.write(file_, place(tensor, at), piece(slot, tensor, at)));
        }
      }
    }
    for (int slot = 0; slot < kSlots; ++slot) wait(slot);
  }

 private:
  static constexpr int kRead = 4;
  static constexpr int kWritten = 3;
  static constexpr std::uint64_t kPiece = std::uint64_t{8} << 20U;
  static constexpr int kThreads = 8;
  static constexpr int kSlots = 8;
  static constexpr int kAhead = 4;

  // Reads of room that nothing was written to would not reach the disk. Random,
  // because disks may compress.
  void fill() {
    std::mt19937_64 random(1);
    const std::span<std::uint64_t> numbers(
        static_cast<std::uint64_t*>(memory_.data),
        memory_.size / sizeof(std::uint64_t));
    std::ranges::generate(numbers, [&] { return random(); });
    for (int tensor = 0; tensor < kRead; ++tensor) {
      for (std::uint64_t at = 0; at < bytes_; at += kPiece) {
        if (!move(piece(0, tensor, at), tensor, at, true))
          throw std::runtime_error("direct writes failed");
      }
    }
  }

  [[nodiscard]] std::uint64_t place(int tensor, std::uint64_t at) const {
    return begins_[static_cast<std::size_t>(tensor)] + at;
  }
  /// Memory for the piece at `at`; the last one is shorter.
  [[nodiscard]] std::span<std::byte>
  piece(int slot, int tensor, std::uint64_t at) const {
    auto* const memory = static_cast<std::byte*>(memory_.data);
    const auto number = static_cast<std::size_t>(slot * kRead + tensor);
    return {
        memory + number * kPiece,
        static_cast<std::size_t>(std::min(kPiece, bytes_ - at))};
  }
  [[nodiscard]] bool move(
      std::span<std::byte> memory,
      int tensor,
      std::uint64_t at,
      bool is_write) const {
    const int file = file_.direct() >= 0 ? file_.direct() : file_.plain();
    for (std::size_t done = 0; done < memory.size();) {
      const auto offset = static_cast<off_t>(place(tensor, at) + done);
      std::byte* const from = memory.data() + done;
      const std::size_t size = memory.size() - done;
      const ssize_t moved = is_write ? ::pwrite(file, from, size, offset)
                                     : ::pread(file, from, size, offset);
      if (moved <= 0) return false;
      done += static_cast<std::size_t>(moved);
    }
    return true;
  }

  ScratchFile file_;
  std::uint64_t bytes_;
  std::array<std::uint64_t, kRead> begins_{};
  Buffer memory_{
      static_cast<std::size_t>(std::max(kThreads, kSlots)) * kRead * kPiece};
  TransferQueue queue_;
};

struct LayerImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    constexpr double kScale = 0.1;  // keeps deep sums small
    return x + kScale * linear(x);
  }
  nn::Linear linear = register_module(
      "linear",
      nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(false)));
};
TORCH_MODULE(Layer);

accelerate::AcceleratorOptions
options_of(const fs::path& directory, bool overlaps, bool steps_in_backward) {
  const std::string where = R"("device": "nvme", "nvme_path": ")" +
      directory.string() + R"(", "buffer_count": )" +
      std::to_string(kBufferCount);
  const std::string overlap = overlaps ? "true" : "false";
  accelerate::AcceleratorOptions options;
  options.parallel.deepspeed = accelerate::DeepSpeedOptions{
      .hf_ds_config =
          R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": )"
          R"({"stage": 3, "offload_optimizer": {)" +
          where + R"(, "pipeline_read": )" + overlap +
          R"(, "pipeline_write": )" + overlap + R"(}, "offload_param": {)" +
          where + R"(, "buffer_size": )" + std::to_string(kBufferElements) +
          "}}}",
      .step_in_backward = steps_in_backward};
  options.world.logger = accelerate::Logger(
      [](const accelerate::LogRecord&) {}, accelerate::LogLevel::off);
  return options;
}

nn::ModuleList make_layers(std::int64_t count) {
  nn::ModuleList layers;
  for (std::int64_t i = 0; i < count; ++i) layers->push_back(Layer());
  return layers;
}

/// A model on the disk, one unit per layer.
class DiskRun {
 public:
  DiskRun(
      const fs::path& directory,
      std::int64_t num_layers,
      std::int64_t batch_size,
      bool overlaps = true,
      bool steps_in_backward = false)
      : accelerator_(options_of(directory, overlaps, steps_in_backward)),
        layers_(make_layers(num_layers)),
        adamw_(layers_->parameters(), torch::optim::AdamWOptions(1e-4)),
        model_(accelerator_.prepare(layers_)),
        optimizer_(accelerator_.prepare(adamw_)),
        x_(torch::randn({batch_size, kWidth})) {}

  void make_moments() {
    compute_gradients();
    step();
    zero_grad();
  }
  void compute_gradients() {
    accelerator_.backward(model_.call([&](nn::ModuleListImpl& module) {
      torch::Tensor h = x_;
      for (const auto& layer : module) h = layer->as<Layer>()->forward(h);
      return h.pow(2).mean();
    }));
  }
  void step() { optimizer_.step(); }
  void zero_grad() { optimizer_.zero_grad(); }
  /// Waits until the disk has everything that left memory.
  void flush() {
    const torch::Tensor& shard = optimizer_.param_groups()[0].params()[0];
    std::set<DiskTensors*> disks;
    const auto& adamw = static_cast<const torch::optim::AdamWParamState&>(
        *optimizer_.inner().state().at(shard.unsafeGetTensorImpl()));
    for (const torch::Tensor& tensor : {shard, adamw.exp_avg()}) {
      auto* const disk =
          dynamic_cast<DiskTensors*>(accelerate::detail::keeper_of(tensor));
      if (disk == nullptr)
        throw std::runtime_error("shards and moments are not on the disk");
      disks.insert(disk);
    }
    for (DiskTensors* const disk : disks) disk->flush();
  }
  double seconds_of_whole_step() {
    const double seconds = seconds_of([&] {
      compute_gradients();
      step();
      flush();
    });
    zero_grad();
    return seconds;
  }

 private:
  accelerate::Accelerator accelerator_;
  nn::ModuleList layers_;
  accelerate::optim::AdamW adamw_;
  accelerate::Model<nn::ModuleListImpl> model_;
  accelerate::Optimizer optimizer_;
  torch::Tensor x_;
};

// Loads LibTorch's code for the step into memory.
void warm_up() {
  nn::Linear tiny(2, 2);
  accelerate::optim::AdamW adamw(tiny->parameters());
  tiny(torch::ones({2, 2})).pow(2).mean().backward();
  adamw.step();
}

void measure_step(const fs::path& directory, std::int64_t num_layers) {
  const auto num_elements =
      static_cast<std::uint64_t>(num_layers * kWidth * kWidth);
  ByHand by_hand(directory, num_elements);
  by_hand.move_with_queue();
  warm_up();
  forget_peak();
  const double idle = memory_of_process("VmRSS");

  // One row makes products cheap.
  DiskRun run(directory, num_layers, 1);
  run.make_moments();
  forget_peak();
  run.seconds_of_whole_step();
  const double peak = memory_of_process("VmHWM") - idle;

  std::vector<double> ours, threads, queue;
  const auto measure_by_hand = [&] {
    threads.push_back(seconds_of([&] { by_hand.move_with_threads(); }));
    queue.push_back(seconds_of([&] { by_hand.move_with_queue(); }));
  };
  for (int round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) measure_by_hand();
    run.compute_gradients();
    run.flush();
    ours.push_back(seconds_of([&] {
      run.step();
      run.flush();
    }));
    run.zero_grad();
    if (round % 2 == 1) measure_by_hand();
  }
  const double floor = std::min(median(threads), median(queue));
  report(
      {"nvme",
       "step_over_disk",
       median(ours) / floor,
       "x",
       1e3 * floor,
       median(ours) / floor,
       kRounds});
  constexpr double kMargin = 1.05;
  const double bound =
      (kBufferBytes + 2 * kWidth * kWidth * kElementBytes) * kMargin;
  report(
      {"nvme",
       "resident_mb",
       peak / kMega,
       "MB",
       bound / kMega,
       peak / bound,
       1});
}

// Half of the parameters, with a batch that takes time to compute.
void measure_overlap(const fs::path& directory, std::int64_t num_layers) {
  constexpr std::int64_t kBatchSize = 64;
  const std::int64_t half = std::max<std::int64_t>(num_layers / 2, 1);
  DiskRun overlapped(directory, half, kBatchSize);
  DiskRun waiting(directory, half, kBatchSize, /*overlaps=*/false);
  std::vector<double> with, without;
  overlapped.seconds_of_whole_step();
  waiting.seconds_of_whole_step();
  for (int round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) without.push_back(waiting.seconds_of_whole_step());
    with.push_back(overlapped.seconds_of_whole_step());
    if (round % 2 == 1) without.push_back(waiting.seconds_of_whole_step());
  }
  const double ratio = median(without) / median(with);
  report({"nvme", "overlap", ratio, "x", 1e3 * median(with), ratio, kRounds});
}

// Whole steps, of which one kind begins in backward.
void measure_step_in_backward(
    const fs::path& directory,
    std::int64_t num_layers) {
  const std::int64_t half = std::max<std::int64_t>(num_layers / 2, 1);
  DiskRun after(directory, half, 1);
  DiskRun within(
      directory, half, 1, /*overlaps=*/true, /*steps_in_backward=*/true);
  std::vector<double> after_seconds, within_seconds;
  after.make_moments();
  within.make_moments();
  for (int round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) after_seconds.push_back(after.seconds_of_whole_step());
    within_seconds.push_back(within.seconds_of_whole_step());
    if (round % 2 == 1) after_seconds.push_back(after.seconds_of_whole_step());
  }
  const double ratio = median(within_seconds) / median(after_seconds);
  report(
      {"nvme",
       "step_in_backward_over_after",
       ratio,
       "x",
       1e3 * median(after_seconds),
       ratio,
       kRounds});
}

// Forward and backward of transformer layers.
void measure_activations(const fs::path& directory) {
  constexpr std::int64_t kSize = 1024, kTokens = 512, kSamples = 4;
  constexpr int kLayers = 6;
  std::vector<nn::TransformerEncoderLayer> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.emplace_back(nn::TransformerEncoderLayerOptions(kSize, kSize / 64)
                            .dim_feedforward(4 * kSize)
                            .dropout(0));
  }
  const torch::Tensor x =
      torch::randn({kTokens, kSamples, kSize}).requires_grad_(true);
  const accelerate::SavedTensorFile file({.directory = directory});
  const auto forward = [&] {
    torch::Tensor h = x;
    for (auto& layer : layers) h = layer(h);
    return h.pow(2).mean();
  };
  const auto recomputed = [&] {
    torch::Tensor h = x;
    for (auto& layer : layers)
      h = accelerate::checkpoint([&] { return layer(h); });
    h.pow(2).mean().backward();
  };
  const auto on_disk = [&] {
    torch::Tensor loss;
    {
      const accelerate::SaveOnDisk saving(file);
      loss = forward();
    }
    loss.backward();
  };
  const auto in_memory = [&] { forward().backward(); };
  std::vector<double> recompute_seconds, disk_seconds, memory_seconds;
  recomputed();
  on_disk();
  for (int round = 0; round < kRounds; ++round) {
    recompute_seconds.push_back(seconds_of(recomputed));
    disk_seconds.push_back(seconds_of(on_disk));
    memory_seconds.push_back(seconds_of(in_memory));
  }
  const double disk = median(disk_seconds);
  for (const auto& [metric, seconds] :
       {std::pair("activations_on_disk_over_recomputed", &recompute_seconds),
        std::pair("activations_on_disk_over_memory", &memory_seconds)}) {
    const double baseline = median(*seconds);
    report(
        {"nvme",
         metric,
         disk / baseline,
         "x",
         1e3 * baseline,
         disk / baseline,
         kRounds});
  }
}

void measure_whole_step(const fs::path& directory, std::int64_t num_layers) {
  DiskRun run(directory, num_layers, 1);
  run.seconds_of_whole_step();  // makes the moments
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round)
    seconds.push_back(run.seconds_of_whole_step());
  report({"nvme", "whole_step_ms", 1e3 * median(seconds), "ms", 0, 0, kRounds});
}

// False, with one line that says why, if nothing can be measured in the directory.
bool can_measure(const fs::path& directory, double num_elements) {
  constexpr double kGiga = 1e9;
  if (accelerate::detail::is_in_memory(directory)) {
    std::fprintf(
        stderr,
        "nvme: not measured: %s is in memory; name a directory on a disk\n",
        directory.c_str());
    return false;
  }
  constexpr double kByHandElements = 4;
  const double needed =
      num_elements * kElementBytes * (kDiskElements + kByHandElements);
  const auto available = static_cast<double>(fs::space(directory).available);
  if (available >= needed) return true;
  std::fprintf(
      stderr,
      "nvme: not measured: %s has room for %.1f GB, but %.1f GB are needed\n",
      directory.c_str(),
      available / kGiga,
      needed / kGiga);
  return false;
}

void measure(double millions, const fs::path& directory, bool whole_steps) {
  constexpr std::int64_t kFewestLayers = 4;
  const std::int64_t num_layers = std::max<std::int64_t>(
      static_cast<std::int64_t>(millions * kMega) / (kWidth * kWidth),
      kFewestLayers);
  const auto num_elements = static_cast<double>(num_layers * kWidth * kWidth);
  if (!can_measure(directory, num_elements)) return;
  if (whole_steps) return measure_whole_step(directory, num_layers);
  measure_step(directory, num_layers);
  measure_overlap(directory, num_layers);
  measure_step_in_backward(directory, num_layers);
  measure_activations(directory);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kMillions = 400;
  try {
    measure(
        argc > 1 ? std::atof(argv[1]) : kMillions,
        argc > 2 ? fs::path(argv[2])
                 : fs::read_symlink("/proc/self/exe").parent_path(),
        argc > 3 && std::strcmp(argv[3], "step") == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nvme: %s\n", error.what());
    return 1;
  }
  return 0;
}
