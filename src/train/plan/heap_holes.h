#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// Sizes of the free ranges of the C library's heap, of a page or more, without
/// those that the parameters fill: what a program that makes the model anew
/// finds. Empty if the C library is not glibc.
std::vector<std::int64_t> heap_holes(const ParameterTable& table);

/// The free ranges of the main arena, from what malloc_info() writes. It tells
/// the smallest and the largest range of a class, and their sum: here, each is as
/// small or as large, which gives that sum.
std::vector<std::int64_t> read_free_ranges(std::string_view malloc_info);

}  // namespace accelerate::detail
