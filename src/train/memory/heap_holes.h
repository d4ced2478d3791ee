#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "params/parameter_table.h"
#include "train/memory/free_ranges.h"

namespace accelerate::detail {

/// Sizes of the free ranges of the C library's heap, of a page or more, as if
/// the parameters and `others`, ranges of addresses, were freed: what a program
/// finds before it makes the model. Empty if the C library is not glibc.
std::vector<std::int64_t> heap_holes(
    const ParameterTable& table,
    std::vector<MemoryRange> others);

/// Reads the free ranges of the main arena from the output of malloc_info().
/// That gives only the smallest and the largest range of a class and their sum,
/// so each range is taken to be one of these two sizes, to match the sum.
std::vector<std::int64_t> read_free_ranges(std::string_view malloc_info);

}  // namespace accelerate::detail
