#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

/// Records what CUDA devices do, with LibTorch's profiler (Kineto), of which a
/// process has one. Used on one thread. An OperatorRecorder must be started
/// after start() and stopped before stop(), since LibTorch keeps both in one
/// place.
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

/// LibTorch's profiler's record of work on a device, or of the host's call that
/// launched it.
struct DeviceActivity {
  enum class Kind : std::uint8_t { kernel, copy, launch };

  Kind kind = Kind::kernel;
  std::string name;
  /// Index of the device; of a launch, without meaning.
  std::int64_t device = 0;
  /// The stream, or the thread that launched.
  std::int64_t resource = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  /// A number that a launch shares with what it launched; 0 if there is none.
  std::uint64_t correlation = 0;
};

/// The work, in the order of its begin, with the calls that launched it.
/// `clock_shift_ns` is subtracted from all times.
std::vector<DeviceEvent> device_events_of(
    const std::vector<DeviceActivity>& activities,
    std::int64_t clock_shift_ns);

}  // namespace accelerate::detail
