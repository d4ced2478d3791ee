#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "train/memory/arena_layout.h"

namespace accelerate::detail {

/// Uses of memory; MemoryRow has a field for each.
enum class MemoryUse : std::uint8_t {
  weights,
  gradients,
  optimizer_state,
  buckets,
  units,
  activations,
  workspace
};
inline constexpr std::size_t kNumMemoryUses = 7;

/// A simulated region of memory, whose blocks lie as in ArenaLayout, and its
/// pages that have been touched since the system provided them.
class ResidentRegion {
 public:
  MemoryRange take(std::int64_t num_bytes);
  void give(const MemoryRange& block);
  /// Returns free memory to the system as ArenaLayout::return_free() chooses.
  void return_free(std::int64_t num_bytes);
  /// Returns all free pages to the system.
  void trim();
  [[nodiscard]] std::int64_t num_bytes() const {
    return num_resident_ * kPageBytes;
  }

 private:
  void mark(std::int64_t first_page, std::int64_t end_page, bool is_resident);

  ArenaLayout layout_{std::numeric_limits<std::int64_t>::max()};
  std::vector<bool> is_resident_;  // by page
  std::int64_t num_resident_ = 0;
};

/// The memory of a simulated rank, and its peak. Blocks of less than 128 KiB
/// come from the C library's heap, which is taken to be laid out like the
/// arena; others as freed_blocks.h says once it is in use. Memory beside the
/// blocks in the heap and the arena, the padding of other blocks to whole
/// pages, and freed large blocks that are kept count as workspace.
class ResidentMemory {
 public:
  using Uses = std::array<std::int64_t, kNumMemoryUses>;
  struct Block {
    enum class From : std::uint8_t {
      heap,
      arena,
      c_library,  ///< pages of its own, with the C library's header
      kept        ///< pages of its own, which may be kept when freed
    };
    std::int64_t num_bytes = 0;
    From from = From::c_library;
    MemoryRange range{};  ///< in the heap or arena
  };

  /// From now on, medium blocks come from the arena, and up to `limit` bytes of
  /// freed large blocks are kept.
  void keep_freed_blocks(std::int64_t limit) {
    has_arena_ = true;
    limit_ = limit;
  }
  /// Returns the free pages of the heap to the system.
  void return_free_memory();

  Block take(MemoryUse use, std::int64_t num_bytes);
  void give(MemoryUse use, const Block& block);
  /// Takes memory that is not kept when freed, or gives it back if negative.
  void take_unkept(MemoryUse use, std::int64_t num_bytes);
  /// Assigns a block to another use.
  void move(MemoryUse from, MemoryUse to, const Block& block);

  /// Resets the peak to the present memory.
  void forget_peak();
  [[nodiscard]] const Uses& peak() const { return peak_; }
  [[nodiscard]] const Uses& now() const { return now_; }

 private:
  std::int64_t& of(MemoryUse use) {
    return now_[static_cast<std::size_t>(use)];
  }
  [[nodiscard]] Block place(std::int64_t num_bytes);
  [[nodiscard]] std::int64_t resident_in_regions() const {
    return heap_.num_bytes() + arena_.num_bytes();
  }
  void change(MemoryUse use, std::int64_t num_bytes, std::int64_t resident);
  std::int64_t take_kept(std::int64_t num_bytes);
  std::int64_t give_kept(std::int64_t num_bytes);
  void note_peak();
  void make_room(std::int64_t num_bytes);

  std::int64_t limit_ = 0;
  std::vector<std::int64_t> kept_;  // the oldest first
  std::int64_t kept_bytes_ = 0;
  ResidentRegion heap_;
  ResidentRegion arena_;
  bool has_arena_ = false;
  std::int64_t total_ = 0;
  std::int64_t peak_total_ = 0;
  Uses now_{};
  Uses peak_{};
};

}  // namespace accelerate::detail
