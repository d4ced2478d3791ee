#pragma once

#include <cstddef>
#include <memory>

namespace c10 {
struct Allocator;
}

namespace accelerate::detail {

/// Receives the CPU allocations that one thread makes through LibTorch. Called
/// with a lock held: must not allocate tensors.
class AllocationListener {
 public:
  virtual ~AllocationListener() = default;
  virtual void allocated(const void* memory, std::size_t num_bytes) = 0;
  /// Called on any thread.
  virtual void released(const void* memory) = 0;
};

/// Reports this thread's allocations to `listener` during its lifetime; those
/// of other threads are ignored. At most one per thread. LibTorch's CPU
/// allocator is replaced meanwhile by one that forwards everything to it; an
/// allocator that the program registers meanwhile stays. Throws ConfigError if
/// the program has its own CPU allocator that has no raw_deleter(), or that was
/// registered while allocations were counted, and so may forward to this one.
class CountedAllocations {
 public:
  explicit CountedAllocations(std::shared_ptr<AllocationListener> listener);
  ~CountedAllocations();
  CountedAllocations(const CountedAllocations&) = delete;
  CountedAllocations& operator=(const CountedAllocations&) = delete;
};

/// LibTorch's CPU allocator, or the one that the counting allocator forwards to
/// while that is registered.
[[nodiscard]] c10::Allocator* uncounted_cpu_allocator();

/// Replaces `expected` by `wanted`, below the counting allocator while that is
/// registered. Returns false, without changes, if uncounted_cpu_allocator() is
/// not `expected`. The deleter of `wanted` must accept raw memory of
/// `expected`.
bool replace_cpu_allocator(c10::Allocator* expected, c10::Allocator* wanted);

}  // namespace accelerate::detail
