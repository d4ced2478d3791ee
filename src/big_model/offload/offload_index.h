#pragma once

#include <map>
#include <string>
#include <string_view>

#include <accelerate/offload.h>

#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

/// The text of an index.json, as Python writes it.
std::string offload_index_text(const OffloadIndex& index);

/// Throws CheckpointError, naming `name`, for what is not an index.
OffloadIndex parse_offload_index(
    std::string_view text,
    const std::string& name);

std::string offload_checksums_text(
    const std::map<std::string, FileRecord>& records);

/// Empty for what is not such text.
std::map<std::string, FileRecord> parse_offload_checksums(
    std::string_view text);

}  // namespace accelerate::detail
