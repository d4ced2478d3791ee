#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace accelerate::detail {

struct CheckpointState;

/// Returns the newest complete checkpoint of the project, after warning about
/// newer ones that are unusable, by name; empty if there is none. Skips the
/// names in `damaged`. Throws ConfigError if the project does not name its
/// checkpoints.
std::filesystem::path find_newest_checkpoint(
    const CheckpointState& checkpoints,
    const std::set<std::string>& damaged = {});

/// Throws CheckpointError unless `input_dir` is a directory.
void require_directory(
    const CheckpointState& checkpoints,
    const std::filesystem::path& input_dir);

}  // namespace accelerate::detail
