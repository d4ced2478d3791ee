#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/files/file_system.h"
#include "format/tensors/model_shards.h"

namespace accelerate::detail {

struct MergeRequest {
  /// A distributed checkpoint of torch, or one of this library.
  std::filesystem::path checkpoint_dir;
  /// The directory for the merged weights, which is created.
  std::filesystem::path output;
  ModelFormat format = ModelFormat::safetensors;
  /// Delete `checkpoint_dir` afterwards.
  bool removes_checkpoint = false;
  /// Makes the file system to write through, given the bytes of all tensors; if
  /// null, the operating system's is used.
  std::function<std::shared_ptr<FileSystem>(std::uint64_t num_bytes)>
      make_disk = nullptr;
};

/// Merges a sharded checkpoint into one file of weights, a piece at a time.
/// Returns the number of tensors. Throws ConfigError if there is no such
/// checkpoint, naming directories inside that hold one, or if the output would
/// be deleted with it; CheckpointError if it cannot be read.
std::size_t merge_weights(const MergeRequest& request);

}  // namespace accelerate::detail
