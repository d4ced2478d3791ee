#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <accelerate/error.h>

#include "format/tensors/input_file.h"
#include "format/tensors/range_reader.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Thrown when a checkpoint's file cannot be read, or has changed since it was
/// written. Programs see it as a CheckpointError.
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// One chunk (kChunkBytes) of a file that has a record, without segments.
FileRange chunk_range(const InputFile& file, std::uint64_t chunk);

/// Reads a range and returns the XXH3 of all its bytes, each hashed while it is
/// in the processor's cache. Throws as InputFile::read_at().
std::uint64_t read_and_hash(const FileRange& range, RangeReader& reader);

/// The checksum of a chunk of a file that has a record, while its bytes come in
/// order.
class ChunkHash {
 public:
  /// `chunk`: as chunk_range() makes it.
  explicit ChunkHash(const FileRange& chunk);
  ChunkHash(const ChunkHash&) = delete;
  ChunkHash& operator=(const ChunkHash&) = delete;
  ~ChunkHash();

  void add(std::span<const std::byte> bytes);
  /// Marks the chunk as verified. Throws DamagedCheckpoint if its checksum
  /// differs.
  void finish();

 private:
  struct State;

  const InputFile& file_;
  std::uint64_t chunk_;
  std::unique_ptr<State> state_;
};

/// Reads a chunk of a file that has a record, as chunk_range() makes it, and
/// compares its checksum. Throws DamagedCheckpoint if the chunk cannot be read
/// or is not what was written.
void read_and_verify(const FileRange& chunk, RangeReader& reader);

/// Hashes the chunks that hold bytes [begin, end) of a file that has a record,
/// unless they have been verified. Throws DamagedCheckpoint.
void verify_range(
    const InputFile& file,
    std::uint64_t begin,
    std::uint64_t end);

/// Hashes the chunks that hold these tensors, in files that have a record,
/// unless they have been verified. Throws DamagedCheckpoint.
void verify_checksums(const std::vector<const StoredTensor*>& tensors);

}  // namespace accelerate::detail
