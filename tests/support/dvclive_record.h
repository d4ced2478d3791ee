#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace accelerate::testing {

/// DVCLive's files below `directory`, as the oracle's topic "trackers" records
/// them: a list of [path, text], or [path, rows] for .tsv files, in the order
/// of the paths.
nlohmann::json recorded_dvclive_files(const std::filesystem::path& directory);

}  // namespace accelerate::testing
