#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/contents.h"

namespace c10 {
struct Event;
}

namespace accelerate::detail {

/// Host memory that is kept from one save to the next: fresh memory costs about
/// as much as writing it to a disk.
class ACCELERATE_API SnapshotMemory {
 public:
  SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;
  ~SnapshotMemory();

  /// Puts copies in the place of everything in `contents` that this rank will
  /// write, so that training may go on. They are valid until the next call.
  /// From an accelerator copies go to pinned memory, on a stream of their own;
  /// what is queued afterwards waits for them on the device.
  void take(CheckpointContents& contents);
  /// Returns when the copies are there. On any thread.
  void wait() const;

  /// What take() would need.
  static std::uint64_t bytes_for(const CheckpointContents& contents);

 private:
  void reserve(std::size_t num_bytes);

  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  /// In place of memory_, where tensors come from an accelerator.
  at::Tensor pinned_;
  /// Completes with the copies in flight; null if there are none.
  std::unique_ptr<c10::Event> copied_;
};

}  // namespace accelerate::detail
