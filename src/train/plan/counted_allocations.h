#pragma once

#include <cstddef>
#include <memory>

namespace accelerate::detail {

/// Hears of the CPU memory that one thread allocates through LibTorch. Called
/// under a lock: must not allocate tensors.
class AllocationListener {
 public:
  virtual ~AllocationListener() = default;
  virtual void allocated(const void* memory, std::size_t num_bytes) = 0;
  /// By whichever thread.
  virtual void released(const void* memory) = 0;
};

/// While it lives, `listener` hears of what this thread allocates; what other
/// threads allocate passes by. One at a time per thread. LibTorch's CPU
/// allocator is replaced meanwhile by one that forwards everything to it.
/// Throws ConfigError if that is one of the program's own that has no
/// raw_deleter().
class CountedAllocations {
 public:
  explicit CountedAllocations(std::shared_ptr<AllocationListener> listener);
  ~CountedAllocations();
  CountedAllocations(const CountedAllocations&) = delete;
  CountedAllocations& operator=(const CountedAllocations&) = delete;
};

}  // namespace accelerate::detail
