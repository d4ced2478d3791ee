#pragma once

#include <string_view>

namespace accelerate::detail {

/// The program that a TrackerProcess runs: tracker_process.py, which the build
/// embeds in the library.
extern const std::string_view kTrackerScript;

}  // namespace accelerate::detail
