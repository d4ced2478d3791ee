#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace accelerate::testing {

/// What TensorBoard files there are below `directory`, as the oracle's topic
/// "trackers" records it: a list of [path, {"events": [...]}] and [path,
/// {"text": ...}] in the order of the paths, in which "*" and "<time>" stand
/// for what varies.
nlohmann::json recorded_tensorboard_files(
    const std::filesystem::path& directory);

}  // namespace accelerate::testing
