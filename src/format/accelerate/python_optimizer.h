#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "format/accelerate/saved_state.h"

namespace accelerate::detail {

/// The entries that schedules keep in an optimizer's groups, such as
/// initial_lr, by name; each has one value per group, or one for all.
using ScheduleEntries = std::map<std::string, std::vector<double>>;

/// Converts one optimizer of a checkpoint to the state_dict() of PyTorch's
/// class: parameters are numbered in group order, steps are tensors, and groups
/// have every option of the class and the entries of its schedules. `name` and
/// `tensors` are the section's name and tensors. Appends what has no
/// counterpart to `left_out`. Throws ConfigError for classes other than AdamW,
/// Adam, SGD, Adagrad and RMSprop.
TorchValue python_optimizer(
    const SavedState& state,
    const SavedState::Json& optimizer,
    const std::string& name,
    const StoredTensors& tensors,
    const ScheduleEntries& entries,
    std::vector<std::string>& left_out);

}  // namespace accelerate::detail
