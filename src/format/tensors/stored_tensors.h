#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <accelerate/safetensors.h>

#include "format/tensors/hidden_bits.h"
#include "format/tensors/input_file.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// A slice of a tensor: where its bytes begin, usually one row after another.
struct StoredBox {
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0;
  safetensors::Box box;
  /// Strides in elements, where the bytes are not one row after another: in
  /// views of a larger tensor. Set for all boxes with hidden bits.
  std::optional<safetensors::Shape> strides = std::nullopt;
  HiddenBits hidden_bits = {};
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

/// The place of a slice of a tensor: in `file` under the tensor's name.
struct SavedBox {
  std::string file;
  safetensors::Box box;
  /// The first row, along dimension 0, of this slice in the file's tensor of
  /// that name, if it holds several slices; unset if it holds only this one.
  std::optional<std::uint64_t> row = std::nullopt;
};

struct SavedTensor {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  /// Shape of the full tensor.
  safetensors::Shape shape;
  std::vector<SavedBox> boxes;
};

/// Tensors by name, such as those of a model.
using SavedTensors = std::map<std::string, SavedTensor>;

/// The tensors of one section of a checkpoint. With `records`, from the
/// manifest, bytes are compared with their checksums when they are read. Throws
/// CheckpointError if a file contradicts the manifest, Error if a file cannot
/// be read.
StoredTensors stored_in_checkpoint(
    const std::filesystem::path& directory,
    const SavedTensors& saved,
    const std::map<std::string, FileRecord>* records = nullptr);

/// Declares that other processes on this machine also read the files of these
/// tensors (InputFile::set_shared).
void share_files(const StoredTensors& tensors);

/// Shows how many bytes of these tensors' files read_boxes() reads.
void show_reads(
    const StoredTensors& tensors,
    const std::shared_ptr<ByteProgress>& progress);

/// Number of bytes of all tensors.
std::uint64_t num_stored_bytes(const StoredTensors& tensors);

/// The tensors of a safetensors file.
StoredTensors stored_in_safetensors(const std::filesystem::path& file);

/// A slice of a stored tensor to be read into memory.
struct BoxToRead {
  const StoredTensor* tensor = nullptr;
  /// The slice, in coordinates of the full tensor.
  safetensors::Box box;
  /// Destination of its bytes, one row after another.
  std::span<std::byte> out;
};

/// Reads boxes, however they lie in files: only the bytes that are wanted,
/// several files and pieces at once, past the page cache where the bytes are
/// not in it (range_reader.h). In files that have a record, chunks that hold
/// such bytes are read in full and hashed on the way, once each. Throws
/// CheckpointError if a box is not inside its tensor, or `out` has the wrong
/// size; DamagedCheckpoint (verified_read.h) if a checksum differs; Error if a
/// file cannot be read.
void read_boxes(const std::vector<BoxToRead>& boxes);

/// The full tensor as something to write, read piece by piece as it is written.
TensorToWrite to_write(const StoredTensor& tensor);

}  // namespace accelerate::detail
