#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/plan/heap_model.h"

namespace accelerate::detail {

/// What memory is for; MemoryRow has a field for each.
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

/// The memory of a simulated rank, and its peak. Small blocks come from the C
/// library's heap (heap_model.h), of which not all can be returned: what it has
/// beside the blocks in use counts as workspace. With a limit above 0, freed large blocks
/// are kept as keep_freed_blocks() keeps them, and count as workspace, too.
class ResidentMemory {
 public:
  using Uses = std::array<std::int64_t, kNumMemoryUses>;

  explicit ResidentMemory(std::int64_t kept_limit = 0) : limit_(kept_limit) {}

  void take(MemoryUse use, std::int64_t num_bytes);
  void give(MemoryUse use, std::int64_t num_bytes);
  /// Takes, or gives if negative, memory that is not kept when it is freed.
  void take_unkept(MemoryUse use, std::int64_t num_bytes);
  /// The same bytes are now for something else.
  void move(MemoryUse from, MemoryUse to, std::int64_t num_bytes);

  /// The peak is what there is now.
  void forget_peak();
  [[nodiscard]] const Uses& peak() const { return peak_; }
  [[nodiscard]] const Uses& now() const { return now_; }

 private:
  std::int64_t& of(MemoryUse use) {
    return now_[static_cast<std::size_t>(use)];
  }
  void change_heap(MemoryUse use, std::int64_t num_bytes);
  void note_peak();
  void make_room(std::int64_t num_bytes);

  std::int64_t limit_;
  std::vector<std::int64_t> kept_;  // the oldest first
  std::int64_t kept_bytes_ = 0;
  HeapModel heap_;
  std::int64_t total_ = 0;
  std::int64_t peak_total_ = 0;
  Uses now_{};
  Uses peak_{};
};

}  // namespace accelerate::detail
