#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "train/plan/heap_model.h"

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
/// (heap_model.h), which cannot return all of its memory. Heap memory beside
/// the blocks in use, the padding of blocks from the system to whole pages, and
/// freed large blocks that are kept count as workspace.
class ResidentMemory {
 public:
  using Uses = std::array<std::int64_t, kNumMemoryUses>;
  struct Block {
    std::int64_t num_bytes = 0;
    std::optional<HeapModel::Range> in_heap = std::nullopt;
    bool may_be_kept = false;
  };

  /// `holes`: free ranges of the heap when the simulation begins.
  explicit ResidentMemory(const std::vector<std::int64_t>& holes = {})
      : heap_(holes) {}

  /// From now on, keeps up to `limit` bytes of freed large blocks.
  void keep_freed_blocks(std::int64_t limit) { limit_ = limit; }

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
  void change(MemoryUse use, std::int64_t num_bytes, std::int64_t resident);
  void note_peak();
  void make_room(std::int64_t num_bytes);

  std::int64_t limit_ = 0;
  std::vector<std::int64_t> kept_;  // the oldest first
  std::int64_t kept_bytes_ = 0;
  HeapModel heap_;
  std::int64_t total_ = 0;
  std::int64_t peak_total_ = 0;
  Uses now_{};
  Uses peak_{};
};

}  // namespace accelerate::detail
