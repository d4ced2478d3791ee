#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include <accelerate/checkpoint.h>

#include "checkpoint/run/checkpoints.h"

namespace accelerate::detail {

/// Implements load_state(). All ranks call it: they agree on what to load, run
/// the hooks, check all components, and only then load them. An empty
/// `input_dir` means the project's newest checkpoint that is complete and
/// undamaged. Returns which models' weights were loaded.
std::vector<bool> load_checkpoint(
    CheckpointState& checkpoints,
    const std::filesystem::path& input_dir,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components);

/// Implements resume(): the same for the project's newest checkpoint. Returns
/// nothing if there is none.
std::optional<std::vector<bool>> resume_checkpoint(
    CheckpointState& checkpoints,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components);

/// Implements Checkpoints::latest(). All ranks call it.
std::optional<std::filesystem::path> agree_on_newest(
    CheckpointState& checkpoints);

}  // namespace accelerate::detail
