#pragma once

#include <filesystem>

namespace accelerate::detail {

struct Checkpoints;

/// The newest complete checkpoint of the project, after a warning that names
/// those passed over; empty if there is none. Throws ConfigError if the project
/// does not name its checkpoints.
std::filesystem::path find_newest_checkpoint(const Checkpoints& checkpoints);

/// `input_dir`, or the newest if that is empty. Throws CheckpointError if there
/// is none.
std::filesystem::path choose_checkpoint(
    const Checkpoints& checkpoints,
    const std::filesystem::path& input_dir);

}  // namespace accelerate::detail
