#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "train/memory/counted_allocations.h"

namespace accelerate::testing {

/// Counts the CPU memory of tensors that this thread allocates while this
/// object lives; subtracts it when they are freed.
class CountedMemory {
 public:
  /// With `most`, allocating a tensor of more bytes than that fails.
  explicit CountedMemory(std::optional<std::int64_t> most = std::nullopt)
      : count_(std::make_shared<Count>(most)), counted_(count_) {}

  /// Peak number of bytes.
  [[nodiscard]] std::int64_t peak() const {
    const std::lock_guard lock(count_->mutex);
    return count_->peak;
  }
  /// Whether an allocation was refused.
  [[nodiscard]] bool has_refused() const {
    const std::lock_guard lock(count_->mutex);
    return count_->has_refused;
  }

 private:
  struct Count final : detail::AllocationListener {
    explicit Count(std::optional<std::int64_t> limit) : most(limit) {}

    void allocated(const void* memory, std::size_t num_bytes) override {
      const std::lock_guard lock(mutex);
      const auto size = static_cast<std::int64_t>(num_bytes);
      if (most && size > *most) {
        has_refused = true;
        throw std::bad_alloc();
      }
      blocks[memory] = size;
      now += size;
      peak = std::max(peak, now);
    }
    void released(const void* memory) override {
      const std::lock_guard lock(mutex);
      const auto found = blocks.find(memory);
      if (found == blocks.end()) return;
      now -= found->second;
      blocks.erase(found);
    }

    std::mutex mutex;
    std::optional<std::int64_t> most;
    std::unordered_map<const void*, std::int64_t> blocks;
    std::int64_t now = 0;
    std::int64_t peak = 0;
    bool has_refused = false;
  };

  std::shared_ptr<Count> count_;
  detail::CountedAllocations counted_;
};

}  // namespace accelerate::testing
