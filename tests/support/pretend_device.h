#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

/// Two accelerators that are not there: their memory is the host's, and what is
/// queued on a stream is done only when something waits for it, as late as a
/// real device might.
namespace accelerate::testing {

/// Makes the device known to LibTorch, once in a process; it stays its
/// accelerator. Index 0 or 1.
at::Device pretend_device(int index = 0);

struct PretendCounts {
  /// Copies that were queued on a stream other than the default one.
  std::int64_t side_copies = 0;
  /// Side copies from or to pinned memory.
  std::int64_t pinned_copies = 0;
  /// Streams told to wait for an event.
  std::int64_t waits = 0;
  /// Memory said to be used on another stream.
  std::int64_t recorded = 0;
};
PretendCounts pretend_counts();

}  // namespace accelerate::testing
