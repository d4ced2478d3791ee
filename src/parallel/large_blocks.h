#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/export.h>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// While the returned object lives, memory of large tensors on the CPU (1 MiB
/// and more) is kept when it is freed, up to so many bytes, and used again for
/// tensors of exactly its size: training takes the same sizes in every step,
/// glibc's heap would keep a tenth more in holes, and fetching pages from the
/// system anew costs half a step. Several add up. Of the whole process: LibTorch
/// has one allocator for the CPU. One that the program has set is left alone,
/// then nothing is kept. Any thread.
ACCELERATE_API std::shared_ptr<void> keep_large_blocks(
    std::int64_t up_to_bytes);

/// Whether that keeps anything.
ACCELERATE_API bool may_keep_large_blocks();

/// As a strategy: keeps as much as the gradients of the model's parts on this
/// rank take.
std::unique_ptr<Strategy> make_keep_blocks();

/// Bytes that are kept now.
ACCELERATE_API std::int64_t kept_block_bytes();

}  // namespace accelerate::detail
