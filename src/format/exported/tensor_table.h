#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "format/exported/exported_archive.h"

namespace accelerate::detail {

/// The contents of a file of the archive; nothing if there is no such file.
using ExportedFile = std::function<std::optional<std::span<const std::byte>>(
    const std::string& file)>;

/// Reads the table of an archive's tensors. Throws as
/// ExportedArchive::weights() does.
ExportedTensors parse_tensor_table(
    std::string_view text,
    const ExportedFile& contents_of,
    const std::string& name);

}  // namespace accelerate::detail
