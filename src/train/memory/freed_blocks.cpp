#include "train/memory/freed_blocks.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "train/memory/block_arena.h"
#include "train/memory/counted_allocations.h"

namespace accelerate::detail {

namespace {

class BlockAllocator final : public c10::Allocator {
 public:
  explicit BlockAllocator(c10::Allocator& others) : others_(others) {}

  c10::DataPtr allocate(std::size_t size) override {
    void* const memory = take(size);
    if (memory == nullptr) return others_.allocate(size);
    return {memory, memory, &give, c10::Device(c10::DeviceType::CPU)};
  }

  // The deleter also frees memory of the default allocator.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &give; }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  void change_limit(std::int64_t by, int num_leases) {
    const std::lock_guard lock(mutex_);
    limit_ += by;
    num_leases_ += num_leases;
    make_room(0);
    if (num_leases_ == 0) arena_.return_free();
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
    return (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  }

  // Returns null if the block belongs in the fallback allocator.
  void* take(std::size_t size) {
    if (size < kArenaBlocksFrom) return nullptr;
    const std::lock_guard lock(mutex_);
    if (num_leases_ == 0) return nullptr;
    if (size < kKeptBlocksFrom) return arena_.take(size);
    return limit_ > 0 ? take_pages(round_up(size)) : nullptr;
  }

  void* take_pages(std::size_t size) {
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
      arena_.return_free(size);
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

  bool give_to_arena(void* memory) {
    if (!arena_.owns(memory)) return false;
    const std::lock_guard lock(mutex_);
    arena_.give(memory);
    return true;
  }

  bool give_pages(void* memory) {
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
  int num_leases_ = 0;
  BlockArena arena_;
  std::unordered_map<void*, std::size_t> sizes_;  // large blocks in use
  std::vector<Block> kept_;                       // the oldest first
  std::int64_t kept_bytes_ = 0;
  std::int64_t limit_ = 0;
};

// Set once, when it becomes LibTorch's allocator; outlives all tensors.
std::atomic<BlockAllocator*> registered{nullptr};

// This also works while a plan counts a thread's allocations.
bool is_default_allocator() {
  c10::Allocator* const fallback = c10::GetDefaultCPUAllocator();
  return uncounted_cpu_allocator() == fallback &&
      fallback->raw_deleter() != nullptr;
}

// Returns null if the program has its own allocator.
BlockAllocator* register_once() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (registered == nullptr && is_default_allocator()) {
    auto blocks =
        std::make_unique<BlockAllocator>(*c10::GetDefaultCPUAllocator());
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

void BlockAllocator::give(void* memory) {
  // Blocks begin at a page boundary; the other allocator's memory hardly ever
  // does.
  const bool may_be_block =
      reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0;
  BlockAllocator& blocks = *registered.load();
  if (blocks.give_to_arena(memory)) return;
  if (may_be_block && blocks.give_pages(memory)) return;
  c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
}

}  // namespace

std::shared_ptr<void> keep_freed_blocks(std::int64_t up_to_bytes) {
  BlockAllocator* const blocks = register_once();
  if (blocks == nullptr) return nullptr;
  blocks->change_limit(up_to_bytes, 1);
  return {blocks, [up_to_bytes](BlockAllocator* all) {
            all->change_limit(-up_to_bytes, -1);
          }};
}

void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

bool can_keep_freed_blocks() {
  return registered != nullptr || is_default_allocator();
}

std::int64_t kept_block_bytes() {
  BlockAllocator* const blocks = registered;
  return blocks == nullptr ? 0 : blocks->kept_bytes();
}

}  // namespace accelerate::detail
