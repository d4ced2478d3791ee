#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/export.h>

namespace accelerate::detail {

/// While the returned object lives, memory of large tensors on the CPU (1 MiB
/// and more) is kept when it is freed, up to `up_to_bytes`, and used again for
/// tensors of exactly its size: training takes the same sizes in every step,
/// glibc's heap would keep a tenth more in holes, and fetching pages from the
/// system anew costs half a step. Several add up. Any thread.
///
/// It changes the process: the first call registers an allocator as LibTorch's
/// only one for the CPU, which passes on what it does not keep, and fixes
/// glibc's threshold for mapped memory (mallopt), which cannot be undone. Null,
/// and nothing is changed, if can_keep_freed_blocks() is false.
std::shared_ptr<void> keep_freed_blocks(std::int64_t up_to_bytes);

/// False if the program has registered an allocator of its own with LibTorch,
/// which stays. Changes nothing.
bool can_keep_freed_blocks();

/// Bytes that are kept now.
std::int64_t kept_block_bytes();

}  // namespace accelerate::detail
