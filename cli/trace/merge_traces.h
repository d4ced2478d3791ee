#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::cli {

struct MergedTraces {
  std::size_t num_events = 0;
  /// What is unreliable in the result.
  std::vector<std::string> warnings = {};
};

/// Merges the traces in `paths`, in Chrome's format as written by profiles of
/// this library and torch.profiler, into one file: each rank's rows under its
/// number, on rank 0's clock. Throws ConfigError for a file that is not a
/// trace, or if two are from the same rank.
MergedTraces merge_traces(
    const std::vector<std::filesystem::path>& paths,
    const std::filesystem::path& output);

/// The files profile_<rank>.json in a directory, in rank order. Throws
/// ConfigError if there are none.
std::vector<std::filesystem::path> traces_in(
    const std::filesystem::path& directory);

}  // namespace accelerate::cli
