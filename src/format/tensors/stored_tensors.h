#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <accelerate/safetensors.h>

#include "base/files.h"
#include "format/checkpoint/manifest.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// A file that several threads read at once, in slices.
class InputFile {
 public:
  /// Throws Error if it cannot be opened. With a record, read_boxes() compares
  /// checksums.
  explicit InputFile(
      std::filesystem::path path,
      std::optional<FileRecord> record = std::nullopt);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Throws CheckpointError if the file is too short, Error if it cannot be
  /// read.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// All bytes of the file, mapped when first asked for.
  [[nodiscard]] std::span<const std::byte> bytes() const;

  /// The size and checksums that the file should have; null if its bytes are
  /// not checked.
  [[nodiscard]] const FileRecord* record() const {
    return record_ ? &*record_ : nullptr;
  }
  /// True if a chunk was found to be as it was written. Requires a record.
  [[nodiscard]] bool is_verified(std::uint64_t chunk) const {
    return chunk < verified_.size() && verified_[chunk];
  }
  void set_verified(std::uint64_t chunk) const { verified_.at(chunk) = true; }

 private:
  std::filesystem::path path_;
  int file_;
  std::optional<FileRecord> record_;
  /// One entry per chunk.
  mutable std::vector<std::atomic<bool>> verified_;
  mutable std::once_flag is_mapped_;
  mutable std::optional<MappedFile> mapped_;
};

/// A slice of a tensor: where its bytes begin, usually one row after another.
struct StoredBox {
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0;
  safetensors::Box box;
  /// The distances between neighbours in each dimension, in elements, where the
  /// bytes are not one row after another: in views of a larger tensor.
  std::optional<safetensors::Shape> strides = std::nullopt;
};

/// A tensor in files of any format.
struct StoredTensor {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  safetensors::Shape shape;
  /// The boxes cover the tensor once.
  std::vector<StoredBox> boxes;
  /// Tensors with equal numbers are the same tensor; 0 is unshared.
  std::int64_t storage = 0;
  /// Its position in the order that the file gives; 0 if it gives none.
  std::size_t place = 0;
};

using StoredTensors = std::map<std::string, StoredTensor>;

/// The tensors of one section of a checkpoint. With `records`, those of the
/// manifest, bytes are compared with their checksums when they are read. Throws
/// CheckpointError if a file is not what the manifest says, Error if one cannot
/// be read.
StoredTensors stored_in_checkpoint(
    const std::filesystem::path& directory,
    const SavedTensors& saved,
    const std::map<std::string, FileRecord>* records = nullptr);

/// The tensors of a safetensors file.
StoredTensors stored_in_safetensors(const std::filesystem::path& file);

/// A slice of a stored tensor that is wanted in memory.
struct BoxToRead {
  const StoredTensor* tensor = nullptr;
  /// The slice, in coordinates of the full tensor.
  safetensors::Box box;
  /// Destination of its bytes, one row after another.
  std::span<std::byte> out;
};

/// Reads boxes, however they lie in files: only the bytes that are wanted,
/// several files and pieces at once. Of files that have a record, chunks that
/// hold such bytes are read in full and hashed on the way, each once. Throws
/// CheckpointError if a box is not inside its tensor, or `out` has another
/// size; DamagedCheckpoint (verified_read.h) if a checksum differs; Error if a
/// file cannot be read.
void read_boxes(const std::vector<BoxToRead>& boxes);

/// The full tensor as something to write, read piece by piece while it is
/// written.
TensorToWrite to_write(const StoredTensor& tensor);

}  // namespace accelerate::detail
