#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A distributed checkpoint of torch: a directory with `.metadata`, a pickle,
/// and `.distcp` files, as FSDP writes sharded state dicts.
struct TorchDistributed {
  StoredTensors tensors;
  /// Entries that are not tensors, which are not read.
  std::vector<std::string> others;
};

/// Whether `directory` is a distributed checkpoint.
bool is_torch_distributed(const std::filesystem::path& directory);

/// Locates all tensors without executing anything. A single key around
/// everything ("model") is not part of the names. Throws CheckpointError if the
/// files are malformed, Error if one cannot be read.
TorchDistributed read_torch_distributed(const std::filesystem::path& directory);

}  // namespace accelerate::detail
