#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

/// What LibTorch's profiler says about a piece of work of a device, or about
/// the host's call that launched it.
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
