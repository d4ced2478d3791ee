#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/export.h>

namespace accelerate::detail {

/// While the returned object lives, freed memory of large CPU tensors (1 MiB
/// and more) is kept, up to `up_to_bytes`, and reused for tensors of exactly
/// the same size: training allocates the same sizes in every step, glibc's heap
/// would waste a tenth more on fragmentation, and getting fresh pages from the
/// system costs half a step. The limits of several objects add up. Thread-safe.
///
/// The effect is process-wide: the first call replaces LibTorch's CPU allocator
/// with one that forwards what it does not keep, and fixes glibc's mmap
/// threshold (mallopt), which cannot be undone. Returns null and changes
/// nothing if can_keep_freed_blocks() is false.
std::shared_ptr<void> keep_freed_blocks(std::int64_t up_to_bytes);

/// False if the program has registered its own allocator with LibTorch, which
/// is then left in place. Changes nothing.
bool can_keep_freed_blocks();

/// Number of bytes that are kept at present.
std::int64_t kept_block_bytes();

}  // namespace accelerate::detail
