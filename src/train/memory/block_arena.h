#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "train/memory/arena_layout.h"

namespace accelerate::detail {

/// Memory for blocks of tens of KiB to a MiB, kept apart from small objects,
/// which would otherwise lie between them and prevent reuse of freed memory.
/// Reserves as much address space as the machine has memory; if that fails, it
/// gives none. Not thread-safe.
class BlockArena {
 public:
  BlockArena();
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  /// Aligned like LibTorch's. Null if the system gives no memory.
  void* take(std::size_t num_bytes);
  /// `memory` must be from take().
  void give(void* memory);

  /// Returns free memory to the system: about `num_bytes`, which are needed
  /// elsewhere, or everything except a MiB.
  void return_free(std::optional<std::size_t> num_bytes = std::nullopt);

  /// May be called on any thread.
  [[nodiscard]] bool owns(const void* memory) const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto begin = reinterpret_cast<std::uintptr_t>(begin_);
    return address - begin < num_reserved_;
  }

 private:
  bool adjust();

  char* begin_ = nullptr;
  std::size_t num_reserved_ = 0;
  ArenaLayout layout_{0};
  std::int64_t committed_ = 0;
  std::unordered_map<std::int64_t, std::int64_t> ends_;  // of blocks in use
};

}  // namespace accelerate::detail
