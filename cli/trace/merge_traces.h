#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::cli {

struct MergedTraces {
  std::size_t num_events = 0;
  /// What cannot be relied on in the result.
  std::vector<std::string> warnings = {};
};

/// Merges the traces in `paths`, in Chrome's format as profiles of this library
/// and torch.profiler write them, into one file: each rank's rows under its
/// number, on the clock of rank 0. Throws ConfigError for a file that is no
/// trace, or if two are of the same rank.
MergedTraces merge_traces(
    const std::vector<std::filesystem::path>& paths,
    const std::filesystem::path& output);

/// The files profile_<rank>.json of a directory, in the order of ranks. Throws
/// ConfigError if there are none.
std::vector<std::filesystem::path> traces_in(
    const std::filesystem::path& directory);

}  // namespace accelerate::cli
