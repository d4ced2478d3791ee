#pragma once

#include <algorithm>
#include <cstdint>

namespace accelerate::detail {

/// What determines the buffers through which shards are read from a file and
/// written to it.
struct DiskBuffers {
  /// Elements of one buffer; 0: the library chooses.
  std::int64_t elements = 0;
  /// Number of buffers; 0: the library chooses.
  std::int64_t count = 0;
  /// Elements of the largest shard of a parameter.
  std::int64_t largest_shard = 0;
};

/// A step reads a parameter, its gradient and, usually, two moments.
inline constexpr std::int64_t kDiskStepTensors = 4;
/// Buffers hold a part of a step that is read, one that is stepped on, and one
/// that is written.
inline constexpr std::int64_t kDiskParts = 3;

/// Bytes of the buffers of one file. Without a request, three parts of the
/// largest shard fit, within bounds.
inline std::uint64_t disk_buffer_bytes(const DiskBuffers& buffers) {
  constexpr std::int64_t kLeastElements = std::int64_t{4} << 20;
  constexpr std::int64_t kMostElements = std::int64_t{40} << 20;
  constexpr std::int64_t kElementBytes = 4;
  const std::int64_t elements = buffers.elements > 0
      ? buffers.elements
      : std::clamp(buffers.largest_shard, kLeastElements, kMostElements);
  const std::int64_t count =
      buffers.count > 0 ? buffers.count : kDiskParts * kDiskStepTensors;
  return static_cast<std::uint64_t>(elements * count * kElementBytes);
}

}  // namespace accelerate::detail
