#pragma once

#include <cstddef>
#include <cstdint>

namespace accelerate::detail {

/// The system's page size: 4096 on x86-64, up to 65536 on arm64.
std::size_t page_bytes();

/// Whether most pages of the range of an open file are in the page cache, so
/// that reading through it is faster than reading from the disk. Takes
/// microseconds and reads nothing. True where the system does not report it,
/// since a plain read then loses nothing.
bool is_mostly_cached(int file, std::uint64_t offset, std::uint64_t size);

/// Whether all pages of the range are in the page cache, so that using them
/// never blocks. False where the system does not report it.
bool is_completely_cached(int file, std::uint64_t offset, std::uint64_t size);

}  // namespace accelerate::detail
