#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file_system.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

struct AccelerateLayoutOptions {
  /// False saves models as pytorch_model.bin.
  bool safe_serialization = true;
};

/// Writes the files that Python's Accelerate.load_state() reads to `output`, an
/// existing directory, from this library's checkpoint in `source`, whose
/// manifest need not be on disk yet. Sharded tensors are written in full, in
/// bounded memory. If the directories are the same, files common to both
/// layouts are left as they are. All files are durable; the directory is not
/// synced. Returns the names of what is left out.
///
/// Throws ConfigError for what the layout cannot hold, naming it; Error if a
/// file cannot be read or written.
std::vector<std::string> write_accelerate_layout(
    FileSystem& disk,
    const std::filesystem::path& source,
    const Manifest& manifest,
    const std::filesystem::path& output,
    const AccelerateLayoutOptions& options = {});

/// Removes this library's files that Accelerate's layout does not have.
void remove_native_files(
    FileSystem& disk,
    const std::filesystem::path& directory,
    const Manifest& manifest,
    const AccelerateLayoutOptions& options = {});

}  // namespace accelerate::detail
