#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

/// The record of a file as it is now. Throws Error if it cannot be read.
FileRecord record_of(const std::filesystem::path& file);

/// The offsets of chunks that differ from the record, or are missing. Throws
/// Error if the file cannot be read.
std::vector<std::uint64_t> damaged_chunks(
    const std::filesystem::path& file,
    const FileRecord& record);

}  // namespace accelerate::detail
