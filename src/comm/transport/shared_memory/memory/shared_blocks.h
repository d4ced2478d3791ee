#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/machine/shared_segment.h"
#include "comm/transport/shared_memory/memory/layout.h"

namespace accelerate::detail {

/// Memory with one part per rank of a connection. All ranks map all parts, so
/// they can reduce data there without copies.
class SharedBlock {
 public:
  /// The size of a segment with a part of `bytes` per rank.
  static std::size_t segment_bytes(std::size_t bytes, int num_ranks) {
    return kHeaderBytes +
        part_bytes(bytes) * static_cast<std::size_t>(num_ranks);
  }

  SharedBlock(SharedSegment segment, std::size_t bytes)
      : segment_(std::move(segment)), bytes_(bytes) {}

  [[nodiscard]] std::byte* part(int rank) const {
    return segment_.data() + kHeaderBytes +
        static_cast<std::size_t>(rank) * part_bytes(bytes_);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  SharedSegment& segment() { return segment_; }

  /// Called when this rank's part is no longer used.
  void release() { num_released().fetch_add(1); }
  [[nodiscard]] int count_released() const { return num_released().load(); }

 private:
  static constexpr std::size_t kHeaderBytes = 4096;

  static std::size_t part_bytes(std::size_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
  }
  [[nodiscard]] std::atomic<int>& num_released() const {
    return *reinterpret_cast<std::atomic<int>*>(segment_.data() + kCacheLine);
  }

  SharedSegment segment_;
  std::size_t bytes_;
};

/// The blocks of a connection, by number. All ranks add the same blocks in the
/// same order. A block stays mapped until all ranks have released it, since a
/// rank that has may still reduce other ranks' data there. Thread-safe.
class SharedBlocks {
 public:
  /// Drops blocks that all ranks have released, and adds one.
  void add(std::shared_ptr<SharedBlock> block, int num_ranks) {
    const std::lock_guard lock(mutex_);
    std::erase_if(blocks_, [num_ranks](const auto& entry) {
      return entry.second->count_released() == num_ranks;
    });
    blocks_.emplace(next_number_++, std::move(block));
  }

  /// Locates these bytes of `rank` in its part of a block.
  [[nodiscard]] CollectiveNote
  locate(int rank, const std::byte* data, std::size_t bytes) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, block] : blocks_) {
      const std::byte* const part = block->part(rank);
      if (data >= part && data + bytes <= part + block->bytes()) {
        return {
            .block = number, .offset = static_cast<std::uint64_t>(data - part)};
      }
    }
    return {};
  }

  /// The data that the note of `rank` refers to; null if it is elsewhere.
  [[nodiscard]] std::byte* find(int rank, const CollectiveNote& note) const {
    if (note.block < 0) return nullptr;
    const std::lock_guard lock(mutex_);
    return blocks_.at(note.block)->part(rank) + note.offset;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<SharedBlock>> blocks_;
  std::int64_t next_number_ = 0;
};

}  // namespace accelerate::detail
