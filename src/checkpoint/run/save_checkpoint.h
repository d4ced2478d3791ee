#pragma once

#include <filesystem>
#include <vector>

#include <accelerate/checkpoint.h>

#include "checkpoint/run/checkpoints.h"

namespace accelerate::detail {

/// Implements save_state(). All ranks call it: they agree on where to save, run
/// the hooks, collect the components, and write them or start writing. If
/// `output_dir` is empty, ProjectConfiguration chooses the directory.
SaveTicket save_checkpoint(
    CheckpointState& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components);

}  // namespace accelerate::detail
