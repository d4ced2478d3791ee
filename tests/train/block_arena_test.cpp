// Tests the arena of medium blocks, and where it lays them.
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include <rapidcheck.h>

#include <gtest/gtest.h>

#include "train/memory/arena_layout.h"
#include "train/memory/block_arena.h"

namespace accelerate::detail {
namespace block_arena_test {

constexpr std::int64_t kKiB = 1 << 10;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

TEST(ArenaLayout, UsesAFreedRangeAgainForItsSize) {
  ArenaLayout layout(kUnlimited);
  const MemoryRange first = layout.take(65'536).value();
  const MemoryRange odd = layout.take(20'000).value();
  const MemoryRange last = layout.take(65'536).value();
  EXPECT_EQ(first, MemoryRange(0, 65'536));
  EXPECT_EQ(odd, MemoryRange(65'536, 65'536 + 20'032)) << "of aligned size";
  EXPECT_EQ(last.first, odd.second);
  layout.give(first);
  EXPECT_EQ(layout.take(65'536).value(), first);
  layout.give(odd);
  EXPECT_EQ(layout.take(20'030).value(), odd);
}

TEST(ArenaLayout, TakesTheSmallestRangeThatFitsAndMergesWhatIsFree) {
  ArenaLayout layout(kUnlimited);
  std::vector<MemoryRange> blocks;
  for (const std::int64_t size : {64, 16, 32, 16, 48, 16})
    blocks.push_back(layout.take(size * kKiB).value());
  layout.give(blocks[0]);
  layout.give(blocks[2]);
  layout.give(blocks[4]);
  EXPECT_EQ(layout.take(40 * kKiB).value().first, blocks[4].first);
  // Merged with both neighbours.
  layout.give(blocks[1]);
  EXPECT_EQ(
      layout.take(112 * kKiB).value(),
      MemoryRange(blocks[0].first, blocks[2].second));
}

TEST(ArenaLayout, LowersItsLimitWhenTheEndIsFree) {
  ArenaLayout layout(kUnlimited);
  std::vector<MemoryRange> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(layout.take(64 * kKiB).value());
  EXPECT_EQ(layout.limit(), (576 + 192) * kKiB);
  for (int i = 1; i < 9; ++i) layout.give(blocks[i]);
  EXPECT_EQ(layout.limit(), (576 + 192) * kKiB) << "the end is in use";
  layout.give(blocks[9]);
  EXPECT_EQ(layout.limit(), (64 + 128) * kKiB);
}

TEST(ArenaLayout, ReturnsItsLongestFreeRangesBeyondAMiB) {
  ArenaLayout layout(kUnlimited);
  std::vector<MemoryRange> blocks;
  for (const std::int64_t size : {800, 16, 700, 16, 600, 16, 32, 16})
    blocks.push_back(layout.take(size * kKiB).value());
  for (const int freed : {0, 2, 4, 6}) layout.give(blocks[freed]);
  // Free are 2100 KiB in ranges that are long enough, of which 1024 are kept.
  EXPECT_EQ(layout.return_free(kKiB), (std::vector<MemoryRange>{blocks[0]}));
  EXPECT_EQ(
      layout.return_free(1000 * kKiB), (std::vector<MemoryRange>{blocks[2]}));
  EXPECT_TRUE(layout.return_free(1000 * kKiB).empty());
  // What a block leaves of a returned range has no memory either.
  const MemoryRange part = layout.take(650 * kKiB).value();
  EXPECT_EQ(part.first, blocks[2].first);
  EXPECT_TRUE(layout.return_free(1000 * kKiB).empty());
  // Once freed, the block has memory again.
  layout.give(part);
  EXPECT_EQ(layout.return_free(1000 * kKiB).front().first, blocks[2].first);
}

TEST(ArenaLayout, DoesNotExceedItsSize) {
  ArenaLayout layout(256 * kKiB);
  EXPECT_TRUE(layout.take(64 * kKiB).has_value());
  EXPECT_TRUE(layout.take(64 * kKiB).has_value());
  EXPECT_EQ(layout.take(100 * kKiB), std::nullopt);
  EXPECT_EQ(ArenaLayout(0).take(16 * kKiB), std::nullopt);
}

// Blocks in use never overlap, and their places are aligned.
TEST(ArenaLayout, KeepsBlocksApart) {
  EXPECT_TRUE(rc::check([](const std::vector<std::uint16_t>& requests) {
    ArenaLayout layout(kUnlimited);
    std::map<std::int64_t, std::int64_t> used;
    for (const std::uint16_t request : requests) {
      if (request % 3 == 0 && !used.empty()) {
        const auto any = std::next(
            used.begin(),
            request / 3 % static_cast<std::ptrdiff_t>(used.size()));
        layout.give(*any);
        used.erase(any);
        continue;
      }
      const auto block = layout.take(16 * kKiB + request);
      RC_ASSERT(block.has_value());
      RC_ASSERT(block->first % ArenaLayout::kAlignment == 0);
      RC_ASSERT(block->second - block->first >= 16 * kKiB + request);
      RC_ASSERT(block->second <= layout.limit());
      const auto next = used.lower_bound(block->first);
      const bool is_before = next == used.end() || block->second <= next->first;
      const bool is_after =
          next == used.begin() || std::prev(next)->second <= block->first;
      RC_ASSERT(is_before);
      RC_ASSERT(is_after);
      used.insert(*block);
    }
  }));
}

TEST(BlockArena, GivesMemoryAndReturnsIt) {
  BlockArena arena;
  constexpr std::size_t kSize = 100'000;
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(arena.take(kSize));
    ASSERT_NE(blocks.back(), nullptr);
    EXPECT_TRUE(arena.owns(blocks.back()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % 64, 0U);
    std::memset(blocks.back(), i + 1, kSize);
  }
  for (int i = 0; i < 20; ++i) {
    const auto* const bytes = static_cast<const char*>(blocks[i]);
    EXPECT_EQ(bytes[0], i + 1);
    EXPECT_EQ(bytes[kSize - 1], i + 1);
  }
  for (void* block : blocks) arena.give(block);
  int on_stack = 0;
  EXPECT_FALSE(arena.owns(&on_stack));
  EXPECT_FALSE(arena.owns(nullptr));
  // Only the first pages are kept; the others are new, and therefore zero.
  for (int i = 0; i < 20; ++i) blocks[i] = arena.take(kSize);
  EXPECT_EQ(static_cast<const char*>(blocks[0])[0], 1);
  EXPECT_EQ(static_cast<const char*>(blocks[19])[kSize - 1], 0);
}

TEST(BlockArena, ReturnsFreeMemoryInItsMiddle) {
  BlockArena arena;
  constexpr std::size_t kSize = 900'000;
  std::vector<char*> blocks;
  for (int i = 0; i < 6; ++i) {
    blocks.push_back(static_cast<char*>(arena.take(kSize)));
    ASSERT_NE(blocks.back(), nullptr);
    std::memset(blocks.back(), i + 1, kSize);
  }
  for (int i = 1; i < 5; ++i) arena.give(blocks[i]);
  arena.return_free(16 << 20);
  // New pages are zero; blocks in use are left alone.
  EXPECT_EQ(blocks[0][kSize - 1], 1);
  EXPECT_EQ(blocks[5][0], 6);
  char* const again = static_cast<char*>(arena.take(kSize));
  EXPECT_EQ(again, blocks[1]);
  EXPECT_EQ(again[kSize / 2], 0);
}

}  // namespace block_arena_test
}  // namespace accelerate::detail
