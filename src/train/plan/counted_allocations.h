#pragma once

#include <cstddef>
#include <memory>

namespace c10 {
struct Allocator;
}

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
/// allocator is replaced meanwhile by one that forwards everything to it; an
/// allocator that the program registers meanwhile stays. Throws ConfigError if
/// LibTorch's allocator is one of the program's own that has no raw_deleter(),
/// or that was registered while allocations were counted, and so may forward
/// to this one.
class CountedAllocations {
 public:
  explicit CountedAllocations(std::shared_ptr<AllocationListener> listener);
  ~CountedAllocations();
  CountedAllocations(const CountedAllocations&) = delete;
  CountedAllocations& operator=(const CountedAllocations&) = delete;
};

/// LibTorch's CPU allocator, or what the counting one forwards to while it is
/// registered.
[[nodiscard]] c10::Allocator* uncounted_cpu_allocator();

/// Puts `wanted` in the place of `expected`, below the counting allocator while
/// that is registered. Returns false, and changes nothing, if
/// uncounted_cpu_allocator() is another one. Raw memory of `expected` must be
/// good for the deleter of `wanted`.
bool replace_cpu_allocator(c10::Allocator* expected, c10::Allocator* wanted);

}  // namespace accelerate::detail
