#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>

namespace accelerate::benchmarks {

/// Counts bytes that LibTorch's allocator gives this thread, less those
/// returned, while a c10::DebugInfoGuard of kind PROFILER_STATE holds it.
struct LiveBytes : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(
      void*,
      std::int64_t alloc_size,
      std::size_t,
      std::size_t,
      c10::Device) override {
    count += alloc_size;
    peak = std::max(peak, count);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t count = 0;
  std::int64_t peak = 0;
};

}  // namespace accelerate::benchmarks
