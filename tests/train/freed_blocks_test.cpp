#include "train/memory/freed_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

// Sanitizers replace the heap.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define HAS_GLIBC_HEAP 1
#include <malloc.h>
#else
#define HAS_GLIBC_HEAP 0
#endif

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "base/text/text.h"
#include "train/memory/counted_allocations.h"

namespace accelerate::detail {
namespace freed_blocks_test {

constexpr std::int64_t kMiB = 1 << 20;

torch::Tensor bytes(std::int64_t count) {
  return torch::empty({count}, torch::kByte);
}

TEST(FreedBlocks, AreUsedAgainForTensorsOfTheirSize) {
  const auto lease = keep_freed_blocks(64 * kMiB);
  ASSERT_TRUE(can_keep_freed_blocks());
  torch::Tensor a = bytes(3 * kMiB + 5);
  const void* const memory = a.data_ptr();
  a.fill_(7);
  a.reset();
  EXPECT_EQ(kept_block_bytes(), 3 * kMiB + 4096) << "whole pages";
  const torch::Tensor other = bytes(4 * kMiB);
  EXPECT_NE(other.data_ptr(), memory);
  const torch::Tensor b = bytes(3 * kMiB + 100);
  EXPECT_EQ(b.data_ptr(), memory);
  EXPECT_EQ(kept_block_bytes(), 0);
  // Small tensors are left to the fallback allocator.
  bytes(1000).fill_(1);
  EXPECT_EQ(kept_block_bytes(), 0);
}

TEST(FreedBlocks, AreKeptUpToALimitDroppingTheOldest) {
  std::optional<std::shared_ptr<void>> first = keep_freed_blocks(5 * kMiB);
  {
    torch::Tensor a = bytes(2 * kMiB), b = bytes(3 * kMiB), c = bytes(4 * kMiB);
    torch::Tensor large = bytes(6 * kMiB);
    a.reset();
    b.reset();
    EXPECT_EQ(kept_block_bytes(), 5 * kMiB);
    c.reset();
    EXPECT_EQ(kept_block_bytes(), 4 * kMiB);
    large.reset();
    EXPECT_EQ(kept_block_bytes(), 4 * kMiB) << "larger than the limit";
  }
  const auto second = keep_freed_blocks(3 * kMiB);
  bytes(2 * kMiB).zero_();
  EXPECT_EQ(kept_block_bytes(), 6 * kMiB);
  first.reset();
  EXPECT_EQ(kept_block_bytes(), 2 * kMiB) << "the later block fits the limit";
}

TEST(FreedBlocks, AreUnmappedWithTheLastHandle) {
  torch::Tensor survivor;
  {
    const auto lease = keep_freed_blocks(8 * kMiB);
    survivor = bytes(2 * kMiB).fill_(3);
    bytes(4 * kMiB).zero_();
    EXPECT_GT(kept_block_bytes(), 0);
  }
  EXPECT_EQ(kept_block_bytes(), 0);
  EXPECT_EQ(survivor[2 * kMiB - 1].item<int>(), 3);
  survivor.reset();
  EXPECT_EQ(kept_block_bytes(), 0);
  EXPECT_EQ(bytes(2 * kMiB).zero_().sum().item<std::int64_t>(), 0);
}

// With glibc's heap, the small objects would keep each tensor from the place of
// the one before.
TEST(FreedBlocks, OfMediumSizeAreUsedAgainBesideSmallObjects) {
  const auto lease = keep_freed_blocks(8 * kMiB);
  std::vector<torch::Tensor> tensors;
  std::vector<const void*> places;
  std::vector<std::unique_ptr<char[]>> small;
  const auto take_all = [&] {
    for (int i = 0; i < 50; ++i) {
      tensors.push_back(bytes(65'536).fill_(i));
      small.push_back(std::make_unique<char[]>(40));
      places.push_back(tensors.back().data_ptr());
    }
    std::sort(places.begin(), places.end());
    tensors.clear();
  };
  take_all();
  const std::vector<const void*> first = std::exchange(places, {});
  take_all();
  EXPECT_EQ(places, first);
  EXPECT_EQ(kept_block_bytes(), 0);
}

TEST(FreedBlocks, OfMediumSizeOutliveTheLastHandle) {
  torch::Tensor shorter;
  torch::Tensor longer;
  {
    const auto lease = keep_freed_blocks(0);
    shorter = bytes(50'000).fill_(3);
    longer = bytes(500'000).fill_(4);
  }
  EXPECT_EQ(shorter[49'999].item<int>(), 3);
  EXPECT_EQ(longer[499'999].item<int>(), 4);
  shorter.reset();
  longer.reset();
  EXPECT_EQ(bytes(50'000).zero_().sum().item<std::int64_t>(), 0);
}

TEST(FreedBlocks, OfMediumSizeAreReturnedWithTheLastHandle) {
  constexpr std::int64_t kSize = 900'000;
  std::vector<torch::Tensor> tensors;
  std::shared_ptr<void> lease = keep_freed_blocks(0);
  const auto take_all = [&] {
    for (int i = 0; i < 8; ++i) tensors.push_back(bytes(kSize));
  };
  take_all();
  for (torch::Tensor& tensor : tensors) tensor.fill_(1);
  const torch::Tensor survivor = tensors.back();
  tensors.clear();
  lease.reset();
  EXPECT_EQ(survivor.sum().item<std::int64_t>(), kSize);
  lease = keep_freed_blocks(0);
  take_all();
  const auto num_new =
      std::count_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
        return tensor[kSize / 2].template item<int>() == 0;
      });
  EXPECT_GE(num_new, 6) << "new pages are zero";
}

TEST(FreedBlocks, ServeRawMemoryOfAnySize) {
  // oneDNN's scratchpads are raw memory, and can be older than the allocator.
  c10::Allocator& fallback = *c10::GetDefaultCPUAllocator();
  void* const older = fallback.raw_allocate(2 * kMiB);
  const auto lease = keep_freed_blocks(8 * kMiB);
  c10::Allocator& now = *c10::GetCPUAllocator();
  now.raw_deallocate(older);
  for (const std::size_t size :
       {0, 1, 100, 4096, 16 << 10, 100 << 10, 300 << 10, 2 << 20})
    now.raw_deallocate(now.raw_allocate(size));
  torch::Tensor grown = bytes(10);
  grown.resize_({3 * kMiB}).fill_(2);
  EXPECT_EQ(grown.sum().item<std::int64_t>(), 6 * kMiB);
}

TEST(FreedBlocks, MayBeUsedByManyThreads) {
  const auto lease = keep_freed_blocks(16 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        for (const std::int64_t unit : {kMiB, kMiB / 8, kMiB / 32}) {
          const torch::Tensor mine = bytes((1 + (i + t) % 3) * unit);
          mine.fill_(t);
          ASSERT_EQ(mine[mine.numel() - 1].item<int>(), t);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(kept_block_bytes(), 16 * kMiB);
}

// The effects of an Accelerator on the process.
struct Outcome {
  bool replaces_allocator = false;
  bool fixes_heap = false;
};

// Volatile, because compilers elide memory that is only allocated and freed.
void* allocate(std::size_t size) {
  void* volatile memory = std::malloc(size);
  return memory;
}

// Once glibc has freed a mapped block, it takes smaller ones from the heap,
// unless the threshold is fixed.
bool is_heap_fixed() {
  std::free(allocate(8 * kMiB));
#if HAS_GLIBC_HEAP
  const auto mapped_before = mallinfo2().hblks;
  void* const memory = allocate(2 * kMiB);
  const bool is_mapped = mallinfo2().hblks > mapped_before;
  std::free(memory);
  return is_mapped;
#else
  return false;
#endif
}

// Runs in its own process, because neither effect can be undone.
void expect_outcome(
    const AcceleratorOptions& options,
    const Outcome& expected,
    const std::function<void()>& before = [] {}) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        before();
        Accelerator accelerator(options);
        torch::nn::Linear net(1024, 1024);
        auto [model] = std::tuple(accelerator.prepare(net));
        bytes(3 * kMiB).zero_();
        bytes(2 * kMiB).zero_();
        const bool is_replaced =
            c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator();
        const bool is_kept = kept_block_bytes() == 2 * kMiB;
        const bool is_fixed = is_heap_fixed();
        std::cerr << "replaced " << is_replaced << " kept " << is_kept
                  << " fixed " << is_fixed << '\n';
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0),
      format(
          "replaced {} kept {} fixed {}",
          expected.replaces_allocator,
          expected.replaces_allocator,
          expected.fixes_heap && HAS_GLIBC_HEAP));
}

const ParallelOptions kSharded{
    .fully_sharded = FullyShardedDataParallelOptions()};

// A rank that has all shards takes steps as without sharding.
TEST(FreedBlocksDeathTest, AreNotKeptForOneRank) {
  expect_outcome({.parallel = kSharded}, {false, false});
  expect_outcome(
      {.parallel = kSharded, .keep_freed_blocks = true}, {true, true});
}

TEST(FreedBlocksDeathTest, AreKeptForOtherModelsIfSwitchedOn) {
  expect_outcome({}, {false, false});
  expect_outcome({.keep_freed_blocks = true}, {true, true});
}

TEST(FreedBlocksDeathTest, LeaveGlibcAloneIfTheUserTunedIt) {
  // glibc read the variable when this process started, before it was set.
  const auto tune = [] { ::setenv("MALLOC_MMAP_THRESHOLD_", "1000000000", 1); };
  expect_outcome({.parallel = kSharded}, {false, false}, tune);
  expect_outcome(
      {.parallel = kSharded, .keep_freed_blocks = true}, {true, true}, tune);
}

class OtherAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    return c10::GetDefaultCPUAllocator()->allocate(size);
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

TEST(FreedBlocksDeathTest, LeaveAnAllocatorOfTheProgramAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static OtherAllocator own;
        c10::SetCPUAllocator(&own);
        const bool is_null = keep_freed_blocks(8 * kMiB) == nullptr;
        std::_Exit(
            is_null && !can_keep_freed_blocks() && !is_heap_fixed() &&
                    c10::GetCPUAllocator() == &own
                ? 0
                : 1);
      },
      ::testing::ExitedWithCode(0),
      "");
}

class Listener final : public AllocationListener {
 public:
  void allocated(const void*, std::size_t num_bytes) override {
    num_bytes_ += static_cast<std::int64_t>(num_bytes);
  }
  void released(const void*) override { ++num_released_; }

  std::atomic<std::int64_t> num_bytes_ = 0;
  std::atomic<int> num_released_ = 0;
};

// One thread can prepare a model while another plans a model's memory.
TEST(FreedBlocksDeathTest, AreKeptWhileAllocationsAreCounted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto listener = std::make_shared<Listener>();
        std::shared_ptr<void> lease;
        torch::Tensor older;
        torch::Tensor survivor;
        bool was_kept = false;
        {
          const CountedAllocations counting(listener);
          older = bytes(2 * kMiB).zero_();
          std::thread([&] { lease = keep_freed_blocks(8 * kMiB); }).join();
          was_kept = lease != nullptr && can_keep_freed_blocks();
          survivor = bytes(3 * kMiB).zero_();
          bytes(4 * kMiB).zero_();
          was_kept = was_kept && kept_block_bytes() == 4 * kMiB;
        }
        older.reset();
        survivor.reset();
        bytes(5 * kMiB).zero_();
        std::cerr << "kept " << was_kept << ", in the end "
                  << kept_block_bytes() / kMiB << " MiB, counted "
                  << listener->num_bytes_ / kMiB << " MiB, released "
                  << listener->num_released_ << '\n';
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0),
      "kept 1, in the end 8 MiB, counted 9 MiB, released 3");
}

TEST(CountedAllocationsDeathTest, LeaveAnAllocatorThatCameMeanwhile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static OtherAllocator own;
        torch::Tensor survivor;
        {
          const CountedAllocations counting(std::make_shared<Listener>());
          survivor = bytes(kMiB).zero_();
          c10::SetCPUAllocator(&own);
        }
        const bool stays = c10::GetCPUAllocator() == &own;
        survivor.reset();
        // It might forward to the counting allocator, which would forward back
        // to it.
        std::string error;
        try {
          const CountedAllocations again(std::make_shared<Listener>());
        } catch (const ConfigError& refused) {
          error = refused.what();
        }
        std::cerr << "stays " << stays << ": " << error << '\n';
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0),
      "stays 1: .*registered during another plan");
}

}  // namespace freed_blocks_test
}  // namespace accelerate::detail
