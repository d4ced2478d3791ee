#pragma once

#include <cstdint>
#include <mutex>

#include <c10/core/Device.h>

#include "big_model/tiers/units/buffer_pool.h"
#include "big_model/tiers/units/device_copies.h"

namespace accelerate::detail {

/// The memory of units: how much of a limit they take, and the host memory that
/// they are read into. The caller must serialize calls with a lock.
class UnitMemory {
 public:
  /// `is_unlimited`: units may be fetched although they exceed the limit.
  UnitMemory(std::uint64_t limit, bool is_unlimited)
      : limit_(limit), is_unlimited_(is_unlimited) {}

  [[nodiscard]] std::uint64_t limit() const { return limit_; }
  [[nodiscard]] bool has_room_for(std::uint64_t num_bytes) const {
    return is_unlimited_ || bytes_ + num_bytes <= limit_;
  }
  /// Bytes of the units that are in memory or on their way.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }

  /// Counts a unit whose fetch begins.
  void add(std::uint64_t num_bytes);
  /// Counts a unit out whose fetch failed.
  void remove(std::uint64_t num_bytes) { bytes_ -= num_bytes; }
  /// Counts an evicted unit out, whose memory is in use until its device has
  /// finished the queued work.
  void release(std::uint64_t num_bytes, c10::Device device);
  /// If memory is short, unlocks `lock` and waits until the device has finished
  /// the queued work that uses evicted units.
  void wait_for_released(std::unique_lock<std::mutex>& lock);

  /// Recycled host memory for values that `device` computes with.
  [[nodiscard]] BufferPool& buffers(c10::Device device) {
    return device.is_cpu() ? buffers_ : pinned_buffers_;
  }
  void clear_buffers();

 private:
  std::uint64_t limit_;
  bool is_unlimited_;
  std::uint64_t bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  LeavingMemory leaving_;
  BufferPool buffers_{/*is_pinned=*/false};
  BufferPool pinned_buffers_{/*is_pinned=*/true};
};

}  // namespace accelerate::detail
