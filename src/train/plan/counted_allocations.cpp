#include "train/plan/counted_allocations.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <accelerate/error.h>

namespace accelerate::detail {

namespace {

thread_local std::shared_ptr<AllocationListener> heard_by;

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    c10::DataPtr memory = inner_.load()->allocate(size);
    if (heard_by == nullptr || memory.get() == nullptr ||
        memory.get() != memory.get_context())
      return memory;
    void* const address = memory.release_context();
    {
      const std::lock_guard lock(mutex_);
      blocks_[address] = heard_by;
      heard_by->allocated(address, size);
    }
    return {address, address, &give, c10::Device(c10::DeviceType::CPU)};
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &give; }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    inner_.load()->copy_data(to, from, count);
  }

  void begin() {
    const std::lock_guard lock(mutex_);
    if (num_users_++ > 0) return;
    c10::Allocator* const inner = c10::GetCPUAllocator();
    if (inner->raw_deleter() == nullptr) {
      --num_users_;
      throw ConfigError(
          "[train] memory cannot be planned with the program's own CPU "
          "allocator, which has no raw_deleter(); plan before it is "
          "registered");
    }
    inner_ = inner;
    c10::SetCPUAllocator(this);
  }

  void end() {
    const std::lock_guard lock(mutex_);
    if (--num_users_ == 0) c10::SetCPUAllocator(inner_);
  }

 private:
  static void give(void* memory);

  /// Allocators live as long as the process, and so does this one: tensors that
  /// outlive the counting are freed here.
  std::atomic<c10::Allocator*> inner_{nullptr};
  std::mutex mutex_;
  int num_users_ = 0;
  std::unordered_map<void*, std::weak_ptr<AllocationListener>> blocks_;
};

CountingAllocator& counting_allocator() {
  static auto* const allocator = new CountingAllocator();
  return *allocator;
}

void CountingAllocator::give(void* memory) {
  CountingAllocator& self = counting_allocator();
  {
    const std::lock_guard lock(self.mutex_);
    const auto found = self.blocks_.find(memory);
    if (found != self.blocks_.end()) {
      if (const auto listener = found->second.lock())
        listener->released(memory);
      self.blocks_.erase(found);
    }
  }
  self.inner_.load()->raw_deallocate(memory);
}

}  // namespace

CountedAllocations::CountedAllocations(
    std::shared_ptr<AllocationListener> listener) {
  if (heard_by != nullptr) {
    throw InternalError("allocations of this thread are being counted already");
  }
  counting_allocator().begin();
  heard_by = std::move(listener);
}

CountedAllocations::~CountedAllocations() {
  heard_by.reset();
  counting_allocator().end();
}

}  // namespace accelerate::detail
