#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/export.h>

namespace accelerate::detail {

/// While the returned object lives, freed memory of large CPU tensors (1 MiB
/// and more) is kept, up to `up_to_bytes`, and reused for tensors of exactly
/// its size: training allocates the same sizes in every step, glibc's heap
/// would keep a tenth more in holes, and getting pages from the system anew
/// costs half a step. The limits of several objects add up. Any thread may call
/// it.
///
/// It changes the process: the first call replaces LibTorch's CPU allocator by
/// one that forwards what it does not keep, and fixes glibc's threshold for
/// mapped memory (mallopt), which cannot be undone. Returns null and changes
/// nothing if can_keep_freed_blocks() is false.
std::shared_ptr<void> keep_freed_blocks(std::int64_t up_to_bytes);

/// False if the program has registered its own allocator with LibTorch, which
/// then stays. Changes nothing.
bool can_keep_freed_blocks();

/// Number of bytes being kept.
std::int64_t kept_block_bytes();

}  // namespace accelerate::detail
