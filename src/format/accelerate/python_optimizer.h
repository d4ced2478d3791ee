#pragma once

#include <string>
#include <vector>

#include "format/accelerate/saved_state.h"

namespace accelerate::detail {

/// Converts one optimizer of a checkpoint to the state_dict() of PyTorch's
/// class: parameters are numbered in the order of the groups, steps are
/// tensors, and groups have every option of the class. `name` is the section's,
/// `tensors` are its tensors. Appends what has no counterpart to `left_out`.
/// Throws ConfigError for a class other than AdamW, Adam, SGD, Adagrad and
/// RMSprop.
TorchValue python_optimizer(
    const SavedState& state,
    const SavedState::Json& optimizer,
    const std::string& name,
    const StoredTensors& tensors,
    std::vector<std::string>& left_out);

}  // namespace accelerate::detail
