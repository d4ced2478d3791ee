// Tests the memory of a simulated rank.
#include <numeric>
#include <vector>

#include "train/memory/resident_memory.h"

namespace accelerate {
namespace resident_memory_test {

using detail::kPageBytes;
using detail::MemoryUse;
using detail::ResidentMemory;

constexpr std::int64_t kBlock = 1 << 20;

std::size_t place(MemoryUse use) { return static_cast<std::size_t>(use); }

TEST(ResidentMemoryTest, RemembersItsHighestMoment) {
  ResidentMemory memory;
  memory.take(MemoryUse::weights, 10 * kBlock);
  const auto moved = memory.take(MemoryUse::activations, 2 * kBlock);
  const auto given = memory.take(MemoryUse::activations, 3 * kBlock);
  memory.move(MemoryUse::activations, MemoryUse::gradients, moved);
  memory.give(MemoryUse::activations, given);
  memory.take(MemoryUse::workspace, kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], 3 * kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::gradients)], 2 * kBlock);
  // The header of each block takes another page.
  EXPECT_EQ(memory.peak()[place(MemoryUse::workspace)], 3 * kPageBytes);
  memory.forget_peak();
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], 0);
  EXPECT_EQ(
      memory.peak()[place(MemoryUse::workspace)], kBlock + 3 * kPageBytes);
}

std::int64_t sum_of(const ResidentMemory::Uses& uses) {
  return std::accumulate(uses.begin(), uses.end(), std::int64_t{0});
}

TEST(ResidentMemoryTest, KeepsWhatTheHeapOnceHad) {
  constexpr std::int64_t kSmall = 10'000;
  ResidentMemory memory;
  std::vector<ResidentMemory::Block> blocks;
  for (int i = 0; i < 4; ++i)
    blocks.push_back(memory.take(MemoryUse::activations, kSmall));
  const std::int64_t most = sum_of(memory.now());
  EXPECT_EQ(most, 10 * kPageBytes);
  for (int i = 1; i < 4; ++i) memory.give(MemoryUse::activations, blocks[i]);
  EXPECT_EQ(memory.now()[place(MemoryUse::activations)], kSmall);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], most - kSmall);
  // Blocks come from free memory until none is left.
  memory.take(MemoryUse::gradients, 2 * kSmall);
  EXPECT_EQ(sum_of(memory.now()), most);
  memory.take(MemoryUse::gradients, 2 * kSmall);
  EXPECT_GT(sum_of(memory.now()), most);
}

TEST(ResidentMemoryTest, ReturnsLargeBlocksFromBeforeBlocksWereKept) {
  ResidentMemory memory;
  const auto before = memory.take(MemoryUse::weights, kBlock);
  memory.keep_freed_blocks(2 * kBlock);
  memory.give(MemoryUse::weights, before);
  EXPECT_EQ(sum_of(memory.now()), 0);
  memory.give(MemoryUse::weights, memory.take(MemoryUse::weights, kBlock));
  EXPECT_EQ(sum_of(memory.now()), kBlock);
}

// Blocks of the same size use the same place again, with small blocks taken in
// between or not.
TEST(ResidentMemoryTest, TakesMediumBlocksFromTheArena) {
  ResidentMemory memory;
  memory.keep_freed_blocks(2 * kBlock);
  const std::int64_t size = 64 << 10;
  std::vector<ResidentMemory::Block> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(memory.take(MemoryUse::activations, size));
    memory.take(MemoryUse::activations, 1000);
  }
  const std::int64_t most = sum_of(memory.now());
  EXPECT_EQ(most, 4 * size + 2 * kPageBytes);
  for (int i = 0; i < 3; ++i) memory.give(MemoryUse::activations, blocks[i]);
  for (int i = 0; i < 3; ++i) memory.take(MemoryUse::gradients, size);
  EXPECT_EQ(sum_of(memory.now()), most);
  // Longer blocks go to the end, most of which is returned with them.
  const auto longer = memory.take(MemoryUse::units, 8 * size);
  EXPECT_EQ(sum_of(memory.now()), most + 8 * size);
  memory.give(MemoryUse::units, longer);
  EXPECT_EQ(sum_of(memory.now()), most + 2 * size);
}

TEST(ResidentMemoryTest, ReturnsFreeMemoryOfTheArenaForLargeBlocks) {
  ResidentMemory memory;
  memory.keep_freed_blocks(2 * kBlock);
  constexpr std::int64_t kMedium = 512 << 10;
  std::vector<ResidentMemory::Block> blocks;
  for (int i = 0; i < 8; ++i)
    blocks.push_back(memory.take(MemoryUse::gradients, kMedium));
  for (int i = 0; i < 7; ++i) memory.give(MemoryUse::gradients, blocks[i]);
  EXPECT_EQ(sum_of(memory.now()), 8 * kMedium);
  memory.take(MemoryUse::activations, 4 * kBlock);
  EXPECT_EQ(sum_of(memory.now()), 4 * kBlock + kMedium);
}

TEST(ResidentMemoryTest, ReturnsTheFreePagesOfTheHeap) {
  ResidentMemory memory;
  const auto freed = memory.take(MemoryUse::weights, 10 * kPageBytes);
  memory.take(MemoryUse::weights, 1000);
  memory.give(MemoryUse::weights, freed);
  EXPECT_EQ(sum_of(memory.now()), 11 * kPageBytes);
  memory.return_free_memory();
  // The first page has the header of the freed block, the last the other block.
  EXPECT_EQ(sum_of(memory.now()), 1 * kPageBytes);
  memory.take(MemoryUse::weights, 9 * kPageBytes);
  EXPECT_GE(sum_of(memory.now()), 10 * kPageBytes);
}

TEST(ResidentMemoryTest, DoesNotKeepTheMemoryOfKernels) {
  ResidentMemory memory;
  memory.keep_freed_blocks(2 * kBlock);
  memory.take_unkept(MemoryUse::activations, kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], kBlock);
  memory.take_unkept(MemoryUse::activations, -kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::activations)], 0);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], 0);
}

TEST(ResidentMemoryTest, KeepsLargeBlocksUpToItsLimit) {
  ResidentMemory memory;
  memory.keep_freed_blocks(2 * kBlock);
  std::vector<ResidentMemory::Block> blocks;
  for (int i = 0; i < 3; ++i)
    blocks.push_back(memory.take(MemoryUse::units, kBlock));
  for (const auto& each : blocks) memory.give(MemoryUse::units, each);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], 2 * kBlock);
  // A block of the same size reuses the kept one; another size is new.
  memory.take(MemoryUse::units, kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], kBlock);
  memory.take(MemoryUse::units, kBlock + 4096);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], kBlock);
}

}  // namespace resident_memory_test
}  // namespace accelerate
