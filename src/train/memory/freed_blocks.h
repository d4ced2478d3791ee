#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace accelerate::detail {

inline constexpr std::size_t kArenaBlocksFrom = std::size_t{16} << 10;
inline constexpr std::size_t kKeptBlocksFrom = std::size_t{1} << 20;

/// While the returned object lives, CPU tensors get memory as suits training,
/// which allocates the same sizes in every step:
/// - Freed memory of large tensors (from kKeptBlocksFrom) is kept, up to
///   `up_to_bytes`, and reused for tensors of exactly the same size: getting
///   fresh pages from the system costs half a step. The limits of several
///   objects add up.
/// - Medium tensors (from kArenaBlocksFrom) lie in an arena (ArenaLayout),
///   whose end is returned to the system once it is free. In glibc's heap small
///   objects between them would keep freed memory from being used again or
///   returned, which wastes a tenth and more of a small model's memory, and
///   tensors of 128 KiB and more would get fresh pages each time, which costs a
///   fifth of its step.
/// Thread-safe.
///
/// The effect is process-wide: the first call replaces LibTorch's CPU allocator
/// with one that forwards all other requests, and fixes glibc's mmap threshold
/// (mallopt), which cannot be undone. Returns null and changes nothing if
/// can_keep_freed_blocks() is false.
std::shared_ptr<void> keep_freed_blocks(std::int64_t up_to_bytes);

/// Returns the free pages of glibc's heap to the system.
void return_free_memory();

/// False if the program has registered its own allocator with LibTorch, which
/// is then left in place. Changes nothing.
bool can_keep_freed_blocks();

/// Number of bytes of large tensors that are kept at present.
std::int64_t kept_block_bytes();

}  // namespace accelerate::detail
