#pragma once

#include <filesystem>

namespace accelerate::detail {

struct Checkpoints;

/// Returns the newest complete checkpoint of the project, after a warning that
/// names newer ones that are unusable; empty if there is none. Throws
/// ConfigError if the project does not name its checkpoints.
std::filesystem::path find_newest_checkpoint(const Checkpoints& checkpoints);

/// Returns `input_dir`, or the newest checkpoint if that is empty. Throws
/// CheckpointError if it does not exist.
std::filesystem::path choose_checkpoint(
    const Checkpoints& checkpoints,
    const std::filesystem::path& input_dir);

}  // namespace accelerate::detail
