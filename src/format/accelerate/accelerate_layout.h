#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file_system.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

struct AccelerateLayoutOptions {
  /// False: models as pytorch_model.bin.
  bool safe_serialization = true;
};

/// Writes the files that Python's Accelerate.load_state() reads to `output`, an
/// existing directory, from the checkpoint of this library in `source`, whose
/// manifest need not be on the disk yet. Sharded tensors are written in full,
/// in bounded memory. If both directories are the same, files that both layouts
/// have are left as they are. All files are durable; the directory is not
/// synced. Returns what is left out, by name.
///
/// Throws ConfigError for what the layout cannot hold, naming it; Error if a
/// file cannot be read or written.
std::vector<std::string> write_accelerate_layout(
    FileSystem& disk,
    const std::filesystem::path& source,
    const Manifest& manifest,
    const std::filesystem::path& output,
    const AccelerateLayoutOptions& options = {});

/// Removes the files of this library's layout that Accelerate's does not have.
void remove_native_files(
    FileSystem& disk,
    const std::filesystem::path& directory,
    const Manifest& manifest,
    const AccelerateLayoutOptions& options = {});

}  // namespace accelerate::detail
