#pragma once

#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace accelerate::detail {

/// Calls function(begin, end) for ranges that cover [0, count), on LibTorch's
/// threads; on this thread alone if `count` is below `grain`, inside another
/// parallel region, or with one thread. Exceptions propagate to the caller.
///
/// at::parallel_for() is a template that is serial unless the program using it
/// is compiled with the same OpenMP as LibTorch; this function does not depend
/// on that.
void for_parallel_ranges(
    std::int64_t count,
    std::int64_t grain,
    c10::function_ref<void(std::int64_t begin, std::int64_t end)> function);

}  // namespace accelerate::detail
