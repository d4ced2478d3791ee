#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

/// Records what CUDA devices do, with LibTorch's profiler (Kineto), of which a
/// process has one. Used on one thread. An OperatorRecorder is to be started
/// after start() and stopped before stop(): LibTorch keeps both in one place.
class DeviceRecorder {
 public:
  /// True if this process has a CUDA device.
  static bool has_device();
  /// Null while another recorder of this process lives.
  static std::unique_ptr<DeviceRecorder> make();

  DeviceRecorder(const DeviceRecorder&) = delete;
  DeviceRecorder& operator=(const DeviceRecorder&) = delete;
  /// Drops what was recorded.
  ~DeviceRecorder();

  /// Throws ConfigError if LibTorch's profiler cannot be started, as does
  /// start(). May take a second the first time.
  void prepare();
  /// Begins when `device` has finished its work.
  void start(c10::Device device);
  /// Waits for the device to finish, and returns what all devices did.
  /// `wall_base_ns` is that of the clock, measured now.
  std::vector<DeviceEvent> stop(c10::Device device, std::int64_t wall_base_ns);

 private:
  DeviceRecorder() = default;

  // LibTorch's profiler on this thread; null while none is running.
  const void* profiler_ = nullptr;
};

}  // namespace accelerate::detail
