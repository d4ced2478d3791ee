#include "data/datasets/idx_header.h"

#include <algorithm>
#include <limits>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Bytes = std::span<const std::byte>;

std::uint64_t big_endian(Bytes bytes) {
  std::uint64_t value = 0;
  for (const std::byte byte : bytes)
    value = value << 8 | std::to_integer<std::uint64_t>(byte);
  return value;
}

std::size_t width_of(int type_code, const std::string& path) {
  switch (type_code) {
    case 0x08:
    case 0x09:
      return 1;
    case 0x0b:
      return 2;
    case 0x0c:
    case 0x0d:
      return 4;
    case 0x0e:
      return 8;
    default:
      throw ConfigError(format(
          "[data] {} is not an IDX file: its type code is {}; valid codes are "
          "8, 9, 11, 12, 13 and 14",
          path,
          type_code));
  }
}

// LibTorch counts elements and strides in 64 bits, and strides treat an empty
// dimension like one of size 1.
bool fits_into_a_tensor(
    const std::vector<std::int64_t>& sizes,
    std::size_t width) {
  auto left =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) /
      width;
  for (const std::int64_t size : sizes) {
    left /= static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
  }
  return left > 0 && sizes.size() <= kMostDimensions;
}

void require_idx(Bytes bytes, const std::string& path) {
  constexpr std::size_t kMagic = 4;
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x1f} &&
      bytes[1] == std::byte{0x8b}) {
    throw ConfigError(format(
        "[data] {} is compressed; unpack it first: gunzip {}", path, path));
  }
  if (bytes.size() < kMagic || bytes[0] != std::byte{0} ||
      bytes[1] != std::byte{0}) {
    throw ConfigError(format(
        "[data] {} is not an IDX file: it does not begin with two zeros",
        path));
  }
}

}  // namespace

IdxHeader parse_idx_header(
    Bytes bytes,
    std::uint64_t file_size,
    const std::string& path) {
  constexpr std::size_t kMagic = 4;
  require_idx(bytes, path);
  IdxHeader header{.type_code = std::to_integer<int>(bytes[2])};
  header.width = width_of(header.type_code, path);
  const auto num_dims = std::to_integer<std::size_t>(bytes[3]);
  header.num_bytes = kMagic + num_dims * 4;
  const bool is_complete = bytes.size() >= header.num_bytes;
  const std::uint64_t left = file_size < header.num_bytes
      ? 0
      : (file_size - header.num_bytes) / header.width;
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < num_dims && is_complete; ++i) {
    const std::uint64_t size = big_endian(bytes.subspan(kMagic + i * 4, 4));
    header.sizes.push_back(static_cast<std::int64_t>(size));
    // Stops multiplying before the product overflows: the file is wrong once
    // the product exceeds what it can hold.
    count = size != 0 && count > left / size + 1 ? left + 1 : count * size;
  }
  if (!is_complete || count * header.width != file_size - header.num_bytes) {
    throw ConfigError(format(
        "[data] {} has {} bytes, which its header contradicts: it is "
        "truncated, or not an IDX file",
        path,
        file_size));
  }
  if (!fits_into_a_tensor(header.sizes, header.width)) {
    throw ConfigError(format(
        "[data] {} has {} dimensions, whose sizes no tensor can have: a tensor "
        "has at most {} dimensions and 2^63 - 1 bytes, an empty dimension "
        "counting as one",
        path,
        num_dims,
        kMostDimensions));
  }
  header.num_elements = count;
  return header;
}

}  // namespace accelerate::detail
