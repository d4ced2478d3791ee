// Several threads that use the weights of one model at once, as in the backward
// of a model on several devices: autograd runs one thread per device.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <accelerate/big_model.h>
#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::tier_threads_test {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using testing::expect_error;
using testing::TemporaryDirectory;
using torch::Tensor;

constexpr int kLayers = 6;
constexpr std::int64_t kWidth = 24;

struct LayersImpl : nn::Module {
  LayersImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), nn::Linear(kWidth, kWidth)));
    }
  }
  std::vector<nn::Linear> layers;
};
TORCH_MODULE(Layers);

class TierThreads : public ::testing::Test {
 protected:
  TierThreads() { torch::manual_seed(0); }

  TemporaryDirectory directory_{TemporaryDirectory::memory()};
  fs::path folder_ = directory_ / "offload";
  Tensor x_ = torch::ones({2, kWidth});
};

struct WideLayersImpl : nn::Module {
  WideLayersImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), nn::Linear(1024, 1024)));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};
TORCH_MODULE(WideLayers);

void make_cold(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int opened = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(opened);
    ::posix_fadvise(opened, 0, 0, POSIX_FADV_DONTNEED);
    ::close(opened);
  }
}

// The layers are large enough for reads that bypass the page cache.
TEST_F(TierThreads, ReadAheadFromAColdDiskWithinTheMemoryOfTwoLayers) {
  const torch::NoGradGuard no_grad;
  const TemporaryDirectory disk;
  WideLayers model;
  const Tensor x = torch::randn({2, 1024});
  const Tensor expected = model(x);
  const Dispatch dispatch = disk_offload_module(
      *model, disk / "offload", {.execution_device = torch::kCPU});
  for (int i = 0; i < 5; ++i) {
    make_cold(disk / "offload");
    EXPECT_TRUE(model(x).equal(expected));
  }
  EXPECT_EQ(dispatch.stats().peak_bytes, 2U * (1024 * 1024 + 1024) * 4);
}

void read_all(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    file.ignore(std::numeric_limits<std::streamsize>::max());
  }
}

// Mapping is so cheap that nothing is prefetched, and one layer is in memory
// instead of two.
TEST_F(TierThreads, FetchWhatThePageCacheHasWhenItIsUsed) {
  constexpr std::uint64_t kWeight = std::uint64_t{1024} * 1024 * 4;
  constexpr std::uint64_t kLayer = kWeight + 1024 * 4;
  const torch::NoGradGuard no_grad;
  const TemporaryDirectory disk;
  WideLayers model;
  const Tensor x = torch::randn({2, 1024});
  const Tensor expected = model(x);
  Dispatch dispatch = disk_offload_module(
      *model, disk / "offload", {.execution_device = torch::kCPU});
  // The first forward verifies checksums.
  EXPECT_TRUE(model(x).equal(expected));
  for (int i = 0; i < 3; ++i) {
    dispatch.offload();
    read_all(disk / "offload");
    const DispatchStats before = dispatch.stats();
    EXPECT_TRUE(model(x).equal(expected));
    const DispatchStats after = dispatch.stats();
    if (after.mapped_bytes == 0)
      GTEST_SKIP() << "this file system has no leases";
    EXPECT_EQ(after.mapped_bytes - before.mapped_bytes, kLayers * kWeight);
    EXPECT_EQ(after.num_fetches - before.num_fetches, kLayers);
    EXPECT_EQ(after.bytes, kLayer);
    // From a cold disk, layers are prefetched again.
    dispatch.offload();
    make_cold(disk / "offload");
    EXPECT_TRUE(model(x).equal(expected));
  }
}

// A thread waits for a unit that is only queued while other threads evict,
// queue and use other units.
TEST_F(TierThreads, UseDifferentUnitsAtOnce) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 150;
  Layers model;
  std::vector<Tensor> expected;
  {
    const torch::NoGradGuard no_grad;
    for (auto& layer : model->layers) expected.push_back(layer(x_));
  }
  const Dispatch dispatch = disk_offload_module(
      *model, folder_, {.execution_device = torch::kCPU, .prefetch_memory = 1});
  std::atomic<int> num_wrong = 0;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const torch::NoGradGuard no_grad;
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        // Every thread visits the layers in a different order.
        const int which = (i * (thread + 1) + 2 * thread) % kLayers;
        if (!model->layers[which](x_).equal(expected[which])) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

// Offloading drops what is only prefetched, but not what a thread waits for.
TEST_F(TierThreads, UseUnitsWhileAnotherThreadOffloadsThem) {
  constexpr int kThreads = 2;
  constexpr int kRounds = 300;
  Layers model;
  std::vector<Tensor> expected;
  {
    const torch::NoGradGuard no_grad;
    for (auto& layer : model->layers) expected.push_back(layer(x_));
  }
  Dispatch dispatch = disk_offload_module(
      *model, folder_, {.execution_device = torch::kCPU, .prefetch_memory = 1});
  std::atomic<int> num_wrong = 0;
  std::atomic<int> num_running = kThreads;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < kRounds; ++i) {
        const int which = (i * (thread + 1) + 2 * thread) % kLayers;
        if (!model->layers[which](x_).equal(expected[which])) ++num_wrong;
      }
      --num_running;
    });
  }
  while (num_running > 0) dispatch.offload();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  dispatch.offload();
  EXPECT_EQ(dispatch.stats().bytes, 0U);
}

// Small units are read together. If one of them is damaged, the others still
// arrive.
TEST_F(TierThreads, AFailureIsThatOfItsUnitOnly) {
  const torch::NoGradGuard no_grad;
  Layers model;
  const Tensor expected = model->layers[0](x_);
  const Dispatch dispatch = disk_offload_module(
      *model,
      folder_,
      {.execution_device = torch::kCPU, .prefetch_memory = "1GB"});
  fs::resize_file(folder_ / "layer3.weight.dat", 7);
  // Fetches all layers, those after the first in one read.
  EXPECT_TRUE(model->layers[0](x_).equal(expected));
  for (const int i : {1, 2, 4, 5}) {
    SCOPED_TRACE(i);
    EXPECT_NO_THROW(static_cast<void>(model->layers[i](x_)));
  }
  expect_error<CheckpointError>(
      [&] { static_cast<void>(model->layers[3](x_)); }, "layer3.weight.dat");
}

}  // namespace accelerate::tier_threads_test
