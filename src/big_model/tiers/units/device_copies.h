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

/// Copies values to devices while these compute: on one stream per device, whose
/// freed memory serves its next copies. For one thread at a time.
class DeviceCopies {
 public:
  [[nodiscard]] at::Tensor copy(const at::Tensor& value, c10::Device device);
  /// Arrives when everything that was copied to the device is there.
  [[nodiscard]] std::shared_ptr<c10::Event> arrival(c10::Device device);

 private:
  const c10::Stream& stream_of(c10::Device device);

  std::vector<std::pair<c10::Device, c10::Stream>> streams_;
};

/// Memory of devices that has been given back although operators that were
/// queued before still use it. Threads run ahead of devices: without waiting for
/// them, everything would be fetched while the first block computes.
class LeavingMemory {
 public:
  /// What is queued on the device's current stream may use the memory.
  void add(c10::Device device, std::uint64_t num_bytes) noexcept;
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Forgets memory that is not in use any more.
  void forget_what_left();
  /// An event that arrives when the oldest memory is free; null if there is none.
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
