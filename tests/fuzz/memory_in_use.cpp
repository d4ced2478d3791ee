#include "fuzz/memory_in_use.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace accelerate::fuzz {

namespace {

std::atomic<std::size_t> in_use{0};
std::atomic<std::size_t> most_in_use{0};

void* counted(void* block) {
  if (block == nullptr) return nullptr;
  const std::size_t now = in_use.fetch_add(::malloc_usable_size(block)) +
      ::malloc_usable_size(block);
  std::size_t most = most_in_use.load();
  while (now > most && !most_in_use.compare_exchange_weak(most, now)) {
  }
  return block;
}

void* allocate(std::size_t size, std::size_t alignment = 0) {
  if (size == 0) size = 1;
  if (alignment == 0) return counted(std::malloc(size));
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  return counted(std::aligned_alloc(alignment, rounded));
}

void* allocate_or_throw(std::size_t size, std::size_t alignment = 0) {
  void* const block = allocate(size, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void release(void* block) {
  if (block == nullptr) return;
  in_use.fetch_sub(::malloc_usable_size(block));
  std::free(block);
}

}  // namespace

std::size_t peak_of_memory(void (*body)(void* data), void* data) {
  const std::size_t before = in_use.load();
  most_in_use.store(before);
  body(data);
  return most_in_use.load() - before;
}

}  // namespace accelerate::fuzz

using accelerate::fuzz::allocate;
using accelerate::fuzz::allocate_or_throw;
using accelerate::fuzz::release;
using Alignment = std::align_val_t;

void* operator new(std::size_t size) { return allocate_or_throw(size); }
void* operator new[](std::size_t size) { return allocate_or_throw(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void* operator new(std::size_t size, Alignment alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, Alignment alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(
    std::size_t size,
    Alignment alignment,
    const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](
    std::size_t size,
    Alignment alignment,
    const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { release(block); }
void operator delete[](void* block) noexcept { release(block); }
void operator delete(void* block, std::size_t) noexcept { release(block); }
void operator delete[](void* block, std::size_t) noexcept { release(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept {
  release(block);
}
void operator delete[](void* block, const std::nothrow_t&) noexcept {
  release(block);
}
void operator delete(void* block, Alignment) noexcept { release(block); }
void operator delete[](void* block, Alignment) noexcept { release(block); }
void operator delete(void* block, std::size_t, Alignment) noexcept {
  release(block);
}
void operator delete[](void* block, std::size_t, Alignment) noexcept {
  release(block);
}
void operator delete(void* block, Alignment, const std::nothrow_t&) noexcept {
  release(block);
}
void operator delete[](void* block, Alignment, const std::nothrow_t&) noexcept {
  release(block);
}
