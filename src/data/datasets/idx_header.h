#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The most bytes that a header can have: 255 sizes.
inline constexpr std::size_t kMostIdxHeaderBytes = 4 + 255 * 4;

struct IdxHeader {
  /// 8, 9, 11, 12, 13 or 14.
  int type_code = 0;
  /// Bytes per element, and of the header.
  std::size_t width = 0;
  std::size_t num_bytes = 0;
  std::vector<std::int64_t> sizes = {};
  std::uint64_t num_elements = 0;
};

/// Parses the beginning of a file of `file_size` bytes. Throws ConfigError
/// naming `path` unless the file is exactly as long as the header says, and a
/// tensor can have its shape.
IdxHeader parse_idx_header(
    std::span<const std::byte> begin,
    std::uint64_t file_size,
    const std::string& path);

}  // namespace accelerate::detail
