#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace accelerate::testing {

/// The TensorBoard files below `directory`, as the oracle's topic "trackers"
/// records them: a list of [path, {"events": [...]}] and [path, {"text": ...}]
/// in the order of the paths, where "*" and "<time>" stand for what varies.
nlohmann::json recorded_tensorboard_files(
    const std::filesystem::path& directory);

}  // namespace accelerate::testing
