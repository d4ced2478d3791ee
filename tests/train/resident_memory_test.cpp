// The memory of a simulated rank, and the heap in it.
#include <numeric>

#include "train/plan/heap_model.h"
#include "train/plan/resident_memory.h"

namespace accelerate {
namespace resident_memory_test {

using detail::MemoryUse;
using detail::ResidentMemory;

constexpr std::int64_t kBlock = 1 << 20;

std::size_t place(MemoryUse use) { return static_cast<std::size_t>(use); }

TEST(ResidentMemoryTest, RemembersItsHighestMoment) {
  ResidentMemory memory;
  memory.take(MemoryUse::weights, 10 * kBlock);
  memory.take(MemoryUse::activations, 5 * kBlock);
  memory.move(MemoryUse::activations, MemoryUse::gradients, 2 * kBlock);
  memory.give(MemoryUse::activations, 3 * kBlock);
  memory.take(MemoryUse::workspace, kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], 3 * kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::gradients)], 2 * kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::workspace)], 0);
  memory.forget_peak();
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], 0);
  EXPECT_EQ(memory.peak()[place(MemoryUse::workspace)], kBlock);
}

std::int64_t sum_of(const ResidentMemory::Uses& uses) {
  return std::accumulate(uses.begin(), uses.end(), std::int64_t{0});
}

TEST(ResidentMemoryTest, KeepsWhatTheHeapOnceHad) {
  ResidentMemory memory;
  for (int i = 0; i < 4; ++i) memory.take(MemoryUse::activations, 1000);
  const std::int64_t most = sum_of(memory.now());
  EXPECT_GT(most, 4000);
  EXPECT_LT(most, 4000 + 4 * 128);
  for (int i = 0; i < 3; ++i) memory.give(MemoryUse::activations, 1000);
  EXPECT_EQ(memory.now()[place(MemoryUse::activations)], 1000);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], most - 1000);
  // Taken from what is free, until nothing is.
  memory.take(MemoryUse::gradients, 2000);
  EXPECT_EQ(sum_of(memory.now()), most);
  memory.take(MemoryUse::gradients, 2000);
  EXPECT_GT(sum_of(memory.now()), most);
}

// Blocks lie beside each other: what is free between those in use is lost for
// larger ones, and not returned.
TEST(HeapModelTest, HasHolesThatLargerBlocksDoNotFitInto) {
  detail::HeapModel heap;
  constexpr std::int64_t kSmall = 10'000;
  for (int i = 0; i < 20; ++i) {
    heap.take(kSmall);
    heap.take(kSmall + 1000 + i);
  }
  const std::int64_t full = heap.resident();
  for (int i = 0; i < 20; ++i) heap.give(kSmall + 1000 + i);
  // The end is free, but not the holes.
  EXPECT_GT(heap.resident(), full / 2);
  heap.take(100'000);
  EXPECT_GT(heap.resident(), full);
  for (int i = 0; i < 15; ++i) heap.take(kSmall);
  const std::int64_t filled = heap.resident();
  EXPECT_LT(filled, full + 100'000 + 1000);
  // When all is free, the heap is cut.
  for (int i = 0; i < 35; ++i) heap.give(kSmall);
  heap.give(100'000);
  EXPECT_LT(heap.resident(), 200'000);
  EXPECT_GT(heap.resident(), 0);
}

TEST(ResidentMemoryTest, DoesNotKeepTheMemoryOfKernels) {
  ResidentMemory memory(2 * kBlock);
  memory.take_unkept(MemoryUse::activations, kBlock);
  EXPECT_EQ(memory.peak()[place(MemoryUse::activations)], kBlock);
  memory.take_unkept(MemoryUse::activations, -kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::activations)], 0);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], 0);
}

TEST(ResidentMemoryTest, KeepsLargeBlocksUpToItsLimit) {
  ResidentMemory memory(2 * kBlock);
  for (int i = 0; i < 3; ++i) memory.take(MemoryUse::units, kBlock);
  for (int i = 0; i < 3; ++i) memory.give(MemoryUse::units, kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], 2 * kBlock);
  // Taken again, it is no longer kept; another size is new.
  memory.take(MemoryUse::units, kBlock);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], kBlock);
  memory.take(MemoryUse::units, kBlock + 4096);
  EXPECT_EQ(memory.now()[place(MemoryUse::workspace)], kBlock);
}

}  // namespace resident_memory_test
}  // namespace accelerate
