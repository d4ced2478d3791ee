#include "train/memory/counted_allocations.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <accelerate/error.h>

namespace accelerate::detail {

namespace {

// Thread-local because only what the recording thread allocates is counted.
thread_local std::shared_ptr<AllocationListener> heard_by;

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    c10::Allocator* const inner = inner_.load();
    c10::DataPtr memory = inner->allocate(size);
    if (heard_by == nullptr || memory.get() == nullptr ||
        memory.get() != memory.get_context())
      return memory;
    void* const address = memory.release_context();
    {
      const std::lock_guard lock(mutex_);
      blocks_[address] = {heard_by, inner};
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
    if (inner->raw_deleter() == nullptr || inner == successor_) {
      --num_users_;
      throw ConfigError(
          inner == successor_
              ? "[train] memory cannot be planned with the program's own CPU "
                "allocator, which was registered during another plan; register "
                "it before or after plans"
              : "[train] memory cannot be planned with the program's own CPU "
                "allocator, which has no raw_deleter(); plan before it is "
                "registered");
    }
    inner_ = inner;
    c10::SetCPUAllocator(this);
  }

  void end() {
    const std::lock_guard lock(mutex_);
    if (--num_users_ > 0) return;
    c10::Allocator* const present = c10::GetCPUAllocator();
    if (present == this) {
      c10::SetCPUAllocator(inner_);
    } else {
      successor_ = present;
    }
  }

  c10::Allocator* uncounted() {
    c10::Allocator* const present = c10::GetCPUAllocator();
    return present == this ? inner_.load() : present;
  }

  bool replace(c10::Allocator* expected, c10::Allocator* wanted) {
    const std::lock_guard lock(mutex_);
    if (uncounted() != expected) return false;
    if (c10::GetCPUAllocator() == this) {
      inner_ = wanted;
    } else {
      c10::SetCPUAllocator(wanted);
    }
    return true;
  }

 private:
  struct Block {
    std::weak_ptr<AllocationListener> listener;
    c10::Allocator* owner;
  };

  static void give(void* memory);

  /// Allocators live as long as the process: tensors that outlive the counting
  /// are freed through this one.
  std::atomic<c10::Allocator*> inner_{nullptr};
  std::mutex mutex_;
  int num_users_ = 0;
  /// An allocator that the program registered while this one was registered; it
  /// may forward to this one.
  c10::Allocator* successor_ = nullptr;
  std::unordered_map<void*, Block> blocks_;
};

CountingAllocator& counting_allocator() {
  static auto* const allocator = new CountingAllocator();
  return *allocator;
}

void CountingAllocator::give(void* memory) {
  CountingAllocator& self = counting_allocator();
  c10::Allocator* owner = self.inner_;
  {
    const std::lock_guard lock(self.mutex_);
    const auto found = self.blocks_.find(memory);
    if (found != self.blocks_.end()) {
      owner = found->second.owner;
      if (const auto listener = found->second.listener.lock())
        listener->released(memory);
      self.blocks_.erase(found);
    }
  }
  owner->raw_deallocate(memory);
}

}  // namespace

CountedAllocations::CountedAllocations(
    std::shared_ptr<AllocationListener> listener) {
  if (heard_by != nullptr) {
    throw InternalError("allocations of this thread are already being counted");
  }
  counting_allocator().begin();
  heard_by = std::move(listener);
}

CountedAllocations::~CountedAllocations() {
  heard_by.reset();
  counting_allocator().end();
}

c10::Allocator* uncounted_cpu_allocator() {
  return counting_allocator().uncounted();
}

bool replace_cpu_allocator(c10::Allocator* expected, c10::Allocator* wanted) {
  return counting_allocator().replace(expected, wanted);
}

}  // namespace accelerate::detail
