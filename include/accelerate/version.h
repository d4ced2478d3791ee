#pragma once

// The version of this library: macros give that of the headers, version() that
// of the loaded library. docs/reference/versions.md says what changes between
// versions.

#include <string>

#include <accelerate/export.h>

#define ACCELERATE_VERSION_MAJOR 0
#define ACCELERATE_VERSION_MINOR 1
#define ACCELERATE_VERSION_PATCH 0
/// "MAJOR.MINOR.PATCH".
#define ACCELERATE_VERSION "0.1.0"

namespace accelerate {

/// The version of the loaded library, as ACCELERATE_VERSION. The two have the
/// same major and minor version, which the library's file name contains; the
/// patch may differ.
[[nodiscard]] ACCELERATE_API std::string version();

}  // namespace accelerate
