#pragma once

#include <cstdint>
#include <functional>

#include <accelerate/world.h>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

/// How far this rank's wall clock is ahead of rank 0's. `now` gives its
/// nanoseconds.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  /// The true offset is at most this far away.
  std::int64_t error_ns = 0;
};

/// Measures it by a few questions to rank 0 through `store`, which nothing else
/// uses: the answer came between question and receipt, most precisely in the
/// shortest round trip. All ranks must call it.
ClockOffset measure_clock_offset(
    const Store& store,
    int rank,
    int size,
    const std::function<std::int64_t()>& now);

}  // namespace accelerate::detail
