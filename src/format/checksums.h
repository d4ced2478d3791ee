#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "format/manifest.h"

namespace accelerate::detail {

/// Of a file as it is now. Throws Error if it cannot be read.
FileRecord record_of(const std::filesystem::path& file);

/// The places of chunks that are not as recorded, or missing. Throws Error if
/// the file cannot be read.
std::vector<std::uint64_t> damaged_chunks(
    const std::filesystem::path& file,
    const FileRecord& record);

}  // namespace accelerate::detail
