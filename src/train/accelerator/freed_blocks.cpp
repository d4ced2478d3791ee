#include "train/accelerator/freed_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "train/plan/counted_allocations.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kPage = 4096;

class LargeBlocks final : public c10::Allocator {
 public:
  explicit LargeBlocks(c10::Allocator& others) : others_(others) {}

  c10::DataPtr allocate(std::size_t size) override {
    void* memory = size < kLarge ? nullptr : take(round_up(size));
    if (memory == nullptr) return others_.allocate(size);
    return {memory, memory, &give, c10::Device(c10::DeviceType::CPU)};
  }

  // The deleter also frees memory of the default allocator.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &give; }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  void change_limit(std::int64_t by) {
    const std::lock_guard lock(mutex_);
    limit_ += by;
    make_room(0);
  }

  [[nodiscard]] std::int64_t kept_bytes() {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  struct Block {
    void* memory;
    std::size_t size;
  };

  static std::size_t round_up(std::size_t size) {
    return (size + kPage - 1) / kPage * kPage;
  }

  void* take(std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (limit_ == 0) return nullptr;
    // The block freed last is the most likely to be in a cache.
    const auto found =
        std::find_if(kept_.rbegin(), kept_.rend(), [&](const Block& block) {
          return block.size == size;
        });
    void* memory = nullptr;
    if (found != kept_.rend()) {
      memory = found->memory;
      kept_bytes_ -= static_cast<std::int64_t>(size);
      kept_.erase(std::next(found).base());
    } else {
      memory = ::mmap(
          nullptr,
          size,
          PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS,
          -1,
          0);
      if (memory == MAP_FAILED) return nullptr;
    }
    sizes_.emplace(memory, size);
    return memory;
  }

  static void give(void* memory);

  bool keep(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(memory);
    if (found == sizes_.end()) return false;
    const Block block{memory, found->second};
    sizes_.erase(found);
    const auto size = static_cast<std::int64_t>(block.size);
    if (size > limit_) {
      ::munmap(block.memory, block.size);
      return true;
    }
    make_room(size);
    kept_.push_back(block);
    kept_bytes_ += size;
    return true;
  }

  // Frees the oldest blocks first.
  void make_room(std::int64_t bytes) {
    auto first = kept_.begin();
    for (; first != kept_.end() && kept_bytes_ + bytes > limit_; ++first) {
      ::munmap(first->memory, first->size);
      kept_bytes_ -= static_cast<std::int64_t>(first->size);
    }
    kept_.erase(kept_.begin(), first);
  }

  c10::Allocator& others_;
  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> sizes_;  // blocks in use
  std::vector<Block> kept_;                       // the oldest first
  std::int64_t kept_bytes_ = 0;
  std::int64_t limit_ = 0;
};

// Set once, when it becomes LibTorch's allocator; outlives all tensors.
std::atomic<LargeBlocks*> registered{nullptr};

// Also works while a plan counts a thread's allocations.
bool is_default_allocator() {
  c10::Allocator* const fallback = c10::GetDefaultCPUAllocator();
  return uncounted_cpu_allocator() == fallback &&
      fallback->raw_deleter() != nullptr;
}

// Returns null if the program has its own allocator.
LargeBlocks* register_once() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (registered == nullptr && is_default_allocator()) {
    auto blocks = std::make_unique<LargeBlocks>(*c10::GetDefaultCPUAllocator());
    // Its deleter needs this as soon as it is registered.
    registered = blocks.get();
    if (replace_cpu_allocator(c10::GetDefaultCPUAllocator(), blocks.get())) {
      static_cast<void>(blocks.release());
#ifdef __GLIBC__
      // The initial value, but fixed: otherwise the threshold grows, and blocks
      // too small for this allocator leave holes in the heap.
      mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
    } else {
      registered = nullptr;
    }
  }
  return registered;
}

void LargeBlocks::give(void* memory) {
  // Blocks begin at a page boundary; the other allocator's memory hardly ever
  // does.
  const bool may_be_block =
      reinterpret_cast<std::uintptr_t>(memory) % kPage == 0;
  if (may_be_block && registered.load()->keep(memory)) return;
  c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
}

}  // namespace

std::shared_ptr<void> keep_freed_blocks(std::int64_t up_to_bytes) {
  LargeBlocks* const blocks = register_once();
  if (blocks == nullptr) return nullptr;
  blocks->change_limit(up_to_bytes);
  return {blocks, [up_to_bytes](LargeBlocks* all) {
            all->change_limit(-up_to_bytes);
          }};
}

bool can_keep_freed_blocks() {
  return registered != nullptr || is_default_allocator();
}

std::int64_t kept_block_bytes() {
  LargeBlocks* const blocks = registered;
  return blocks == nullptr ? 0 : blocks->kept_bytes();
}

}  // namespace accelerate::detail
