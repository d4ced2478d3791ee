#pragma once

#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace accelerate::detail {

/// Calls function(begin, end) for ranges that make up [0, count), on LibTorch's
/// threads; on this thread alone if `count` is below `grain`, inside of another
/// parallel region, or with one thread. An exception of a range reaches the
/// caller.
///
/// at::parallel_for() is a template that is serial unless the program that uses
/// it is compiled with the OpenMP that LibTorch was compiled with; this is not.
void for_parallel_ranges(
    std::int64_t count,
    std::int64_t grain,
    c10::function_ref<void(std::int64_t begin, std::int64_t end)> function);

}  // namespace accelerate::detail
