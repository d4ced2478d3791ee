#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "train/memory/arena_layout.h"
#include "train/memory/heap_model.h"

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

/// The memory of a simulated rank, and its peak. Small blocks, and larger ones
/// that fit into its free ranges, come from the C library's heap
/// (heap_model.h), which cannot return all of its memory; others as
/// freed_blocks.h says once it is in use. Memory beside the blocks in the heap
/// and the arena, the padding of other blocks to whole pages, and freed large
/// blocks that are kept count as workspace.
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

  /// `holes`: free ranges of the heap when the simulation begins.
  explicit ResidentMemory(const std::vector<std::int64_t>& holes = {})
      : heap_(holes) {}

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
  void change(MemoryUse use, std::int64_t num_bytes, std::int64_t resident);
  std::int64_t take_kept(std::int64_t num_bytes);
  std::int64_t give_kept(std::int64_t num_bytes);
  void note_peak();
  void make_room(std::int64_t num_bytes);

  std::int64_t limit_ = 0;
  std::vector<std::int64_t> kept_;  // the oldest first
  std::int64_t kept_bytes_ = 0;
  HeapModel heap_;
  bool has_arena_ = false;
  ArenaLayout arena_{std::numeric_limits<std::int64_t>::max()};
  TouchedPages arena_pages_;
  std::int64_t total_ = 0;
  std::int64_t peak_total_ = 0;
  Uses now_{};
  Uses peak_{};
};

}  // namespace accelerate::detail
