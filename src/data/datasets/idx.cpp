#include <accelerate/idx.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;
using Bytes = std::span<const std::byte>;

std::uint64_t big_endian(Bytes bytes) {
  std::uint64_t value = 0;
  for (const std::byte byte : bytes)
    value = value << 8 | std::to_integer<std::uint64_t>(byte);
  return value;
}

at::ScalarType dtype_of(std::byte code, const std::string& path) {
  switch (std::to_integer<int>(code)) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0b:
      return at::kShort;
    case 0x0c:
      return at::kInt;
    case 0x0d:
      return at::kFloat;
    case 0x0e:
      return at::kDouble;
    default:
      throw ConfigError(format(
          "[data] {} is not an IDX file: its type code is {}; valid codes are "
          "8, 9, 11, 12, 13 and 14",
          path,
          std::to_integer<int>(code)));
  }
}

// LibTorch counts elements and strides in 64 bits, and strides treat an empty
// dimension as one of size 1.
bool fits_into_a_tensor(
    const std::vector<std::int64_t>& sizes,
    std::size_t width) {
  auto left =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) /
      width;
  for (const std::int64_t size : sizes) {
    left /= static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
  }
  return left > 0 && sizes.size() <= detail::kMostDimensions;
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const detail::MappedFile file(path);
  const Bytes bytes = file.bytes();
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
  const at::ScalarType dtype = dtype_of(bytes[2], path);
  const auto num_dims = std::to_integer<std::size_t>(bytes[3]);
  const std::size_t header = kMagic + num_dims * 4;
  const std::size_t width = c10::elementSize(dtype);
  std::vector<std::int64_t> sizes;
  std::uint64_t left =
      bytes.size() < header ? 0 : (bytes.size() - header) / width;
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < num_dims && bytes.size() >= header; ++i) {
    const std::uint64_t size = big_endian(bytes.subspan(kMagic + i * 4, 4));
    sizes.push_back(static_cast<std::int64_t>(size));
    // Stops multiplying before the product overflows: the file is wrong once
    // the product exceeds what it can hold.
    count = size != 0 && count > left / size + 1 ? left + 1 : count * size;
  }
  if (bytes.size() < header || count * width != bytes.size() - header) {
    throw ConfigError(format(
        "[data] {} has {} bytes, more or fewer than its header says: it is "
        "truncated, or not an IDX file",
        path,
        bytes.size()));
  }
  if (!fits_into_a_tensor(sizes, width)) {
    throw ConfigError(format(
        "[data] {} is of {} dimensions, whose sizes no tensor can have: a "
        "tensor has at most {} dimensions and 2^63 - 1 bytes, an empty "
        "dimension counting as one",
        path,
        num_dims,
        detail::kMostDimensions));
  }
  const at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  auto* out = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const std::byte* in = bytes.data() + header;
  for (std::uint64_t i = 0; i < count; ++i, in += width, out += width) {
    for (std::size_t k = 0; k < width; ++k) out[k] = in[width - 1 - k];
  }
  return tensor;
}

}  // namespace accelerate
