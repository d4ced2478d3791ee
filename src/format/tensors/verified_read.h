#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <accelerate/error.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A checkpoint's file cannot be read, or has changed since it was written.
/// Programs see it as the CheckpointError that it is.
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// Bytes of a file that are wanted in memory.
struct FileSegment {
  std::uint64_t offset = 0;
  std::span<std::byte> out;
};

/// Reads segments of one chunk (kChunkBytes) of a file that has a record,
/// sorted and without overlaps, and hashes the whole chunk on the way: each
/// piece while it is in the processor's cache. `scratch` is this thread's.
/// Throws DamagedCheckpoint if the chunk is not what was written.
void read_and_verify(
    const InputFile& file,
    std::uint64_t chunk,
    std::span<const FileSegment> segments,
    std::vector<std::byte>& scratch);

/// Hashes the chunks that hold bytes [begin, end) of a file that has a record,
/// unless that was done before. Throws DamagedCheckpoint.
void verify_range(
    const InputFile& file,
    std::uint64_t begin,
    std::uint64_t end);

}  // namespace accelerate::detail
