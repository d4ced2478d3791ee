#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <accelerate/safetensors.h>

#include "base/files/file_system.h"
#include "format/tensors/input_file.h"

namespace accelerate::detail {

/// The source of a tensor's bytes, one row after another.
struct TensorBytes {
  std::uint64_t num_bytes = 0;
  /// The bytes; if null, `copy` copies them.
  const std::byte* data = nullptr;
  /// Copies bytes starting at `begin`, a multiple of the element's size. Called
  /// from several threads at once.
  std::function<void(std::uint64_t begin, std::span<std::byte> out)> copy =
      nullptr;
};

/// A tensor to be written.
struct TensorToWrite {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  safetensors::Shape shape;
  TensorBytes bytes;
};

/// A safetensors file to be written.
struct FileToWrite {
  std::filesystem::path path;
  std::map<std::string, TensorToWrite> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes files, several chunks at once, and makes them durable. Memory in use:
/// one chunk per thread. Returns one record per file. The first error stops all
/// threads and is rethrown; the files are then unfinished.
std::vector<FileRecord> write_tensor_files(
    FileSystem& disk,
    const std::vector<FileToWrite>& files);

}  // namespace accelerate::detail
