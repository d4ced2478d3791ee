#pragma once

#include <filesystem>

#include <accelerate/state_dict.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Returns the state of the optimizer in a torch.save file, whose parameters
/// are numbered, and adds its tensors to `tensors`. Throws CheckpointError.
StateDict read_python_optimizer(
    const std::filesystem::path& file,
    StoredTensors& tensors);

}  // namespace accelerate::detail
