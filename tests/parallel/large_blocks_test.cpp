#include "parallel/large_blocks.h"

#include <thread>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate::detail {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

torch::Tensor bytes(std::int64_t count) {
  return torch::empty({count}, torch::kByte);
}

TEST(LargeBlocks, AreUsedAgainForTensorsOfTheirSize) {
  const auto lease = keep_large_blocks(64 * kMiB);
  ASSERT_TRUE(may_keep_large_blocks());
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
  // Small ones are not its business.
  bytes(1000).fill_(1);
  EXPECT_EQ(kept_block_bytes(), 0);
}

TEST(LargeBlocks, AreKeptUpToALimitTheOldestGoFirst) {
  std::optional<std::shared_ptr<void>> first = keep_large_blocks(5 * kMiB);
  {
    torch::Tensor a = bytes(2 * kMiB), b = bytes(3 * kMiB), c = bytes(4 * kMiB);
    torch::Tensor large = bytes(6 * kMiB);
    a.reset();
    b.reset();
    EXPECT_EQ(kept_block_bytes(), 5 * kMiB);
    c.reset();
    EXPECT_EQ(kept_block_bytes(), 4 * kMiB);
    large.reset();
    EXPECT_EQ(kept_block_bytes(), 4 * kMiB) << "more than is ever kept";
  }
  const auto second = keep_large_blocks(3 * kMiB);
  bytes(2 * kMiB).zero_();
  EXPECT_EQ(kept_block_bytes(), 6 * kMiB);
  first.reset();
  EXPECT_EQ(kept_block_bytes(), 2 * kMiB) << "the later, of what is left";
}

TEST(LargeBlocks, GoBackToTheSystemWithTheLastWhoWantedThem) {
  torch::Tensor survivor;
  {
    const auto lease = keep_large_blocks(8 * kMiB);
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

TEST(LargeBlocks, ServeRawMemoryOfAnySize) {
  // oneDNN's scratch comes this way, and may be older than the allocator.
  c10::Allocator& usual = *c10::GetDefaultCPUAllocator();
  void* const older = usual.raw_allocate(2 * kMiB);
  const auto lease = keep_large_blocks(8 * kMiB);
  c10::Allocator& now = *c10::GetCPUAllocator();
  now.raw_deallocate(older);
  for (const std::size_t size : {0, 1, 100, 4096, 2 << 20})
    now.raw_deallocate(now.raw_allocate(size));
  torch::Tensor grown = bytes(10);
  grown.resize_({3 * kMiB}).fill_(2);
  EXPECT_EQ(grown.sum().item<std::int64_t>(), 6 * kMiB);
}

TEST(LargeBlocks, AreForSeveralThreads) {
  const auto lease = keep_large_blocks(16 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const torch::Tensor mine = bytes((1 + (i + t) % 3) * kMiB);
        mine.fill_(t);
        ASSERT_EQ(mine[mine.numel() - 1].item<int>(), t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(kept_block_bytes(), 16 * kMiB);
}

}  // namespace
}  // namespace accelerate::detail
