#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace accelerate::detail {

/// Copies values to devices while the devices compute, on one stream per
/// device, which reuses its freed memory for its next copies. Not thread-safe.
class DeviceCopies {
 public:
  [[nodiscard]] at::Tensor copy(const at::Tensor& value, c10::Device device);
  /// Returns an event that completes when all copies to the device so far are
  /// done.
  [[nodiscard]] std::shared_ptr<c10::Event> arrival(c10::Device device);

 private:
  const c10::Stream& stream_of(c10::Device device);

  std::vector<std::pair<c10::Device, c10::Stream>> streams_;
};

/// Device memory that has been freed while operators queued earlier still use
/// it. Threads run ahead of devices: without waiting for this memory,
/// everything would be fetched while the first block computes.
class LeavingMemory {
 public:
  /// Adds memory that work already queued on the device's current stream may
  /// use.
  void add(c10::Device device, std::uint64_t num_bytes) noexcept;
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Removes memory that is no longer in use.
  void forget_what_left();
  /// Returns an event that completes when the oldest memory is free; null if
  /// there is none.
  [[nodiscard]] std::shared_ptr<c10::Event> oldest() const;

 private:
  struct Part {
    std::shared_ptr<c10::Event> end;
    std::uint64_t num_bytes;
  };
  std::deque<Part> parts_;
  std::uint64_t bytes_ = 0;
};

}  // namespace accelerate::detail
