#pragma once

#include <string>

#include <accelerate/exported_description.h>

#include "format/exported/exported_archive.h"

namespace accelerate::detail {

/// The symbol that an expression consists of: "s77" for "Symbol('s77',
/// integer=True)"; empty for any other expression.
std::string symbol_in(const std::string& expression);

/// "16", "2 to 64", "2 or more".
std::string range_text(const ExportedRange& range);

/// Describes a program, without checking which operators LibTorch has. Throws
/// what ExportedArchive throws.
ExportedDescription describe_exported(
    const ExportedArchive& archive,
    const std::string& model);

}  // namespace accelerate::detail
