#pragma once

#include <cstdint>

namespace accelerate::detail {

/// Whether most pages of the range of an open file are in the page cache, so
/// that reading through it is faster than from the disk. Costs microseconds,
/// and reads nothing. True where the system does not tell: then nothing is
/// lost against a plain read.
bool is_mostly_cached(int file, std::uint64_t offset, std::uint64_t size);

/// Whether all of them are, so that using them waits for nothing. False where
/// the system does not tell.
bool is_completely_cached(int file, std::uint64_t offset, std::uint64_t size);

}  // namespace accelerate::detail
