#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/contents.h"

namespace c10 {
struct Event;
}

namespace accelerate::detail {

/// Host memory that is kept from one save to the next, since touching fresh
/// memory costs about as much as writing to a disk.
class SnapshotMemory {
 public:
  SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;
  ~SnapshotMemory();

  /// Replaces everything in `contents` that this rank will write with copies,
  /// so that training may continue. The copies are valid until the next call.
  /// Accelerator tensors are copied to pinned memory on a side stream; work
  /// queued afterwards waits for the copies on the device.
  void take(CheckpointContents& contents);
  /// Returns once the copies are complete. May be called on any thread.
  void wait() const;

  /// Number of bytes that take() would need.
  static std::uint64_t bytes_for(const CheckpointContents& contents);

 private:
  void reserve(std::size_t num_bytes);
  void reserve_pinned(std::size_t num_bytes);

  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  /// Used instead of memory_ for accelerator tensors.
  at::Tensor pinned_;
  /// Completes with the copies in flight; null if there are none.
  std::unique_ptr<c10::Event> copied_;
};

}  // namespace accelerate::detail
