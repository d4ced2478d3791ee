#pragma once

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
/// `tensors` are the section's name and tensors. Appends descriptions of values
/// without a counterpart to `left_out`. Throws ConfigError for classes other
/// than AdamW, Adam, SGD, Adagrad and RMSprop.
TorchValue python_optimizer(
    const SavedState& state,
    const SavedState::Json& optimizer,
    const std::string& name,
    const StoredTensors& tensors,
    const ScheduleEntries& entries,
    std::vector<std::string>& left_out);

/// The contents of a random_states_<rank>.pkl: the saved states of torch's
/// generators, and states of Python's and NumPy's generators, which C++
/// programs do not have. Those are Mersenne Twisters seeded from torch's state,
/// so that equal checkpoints give equal numbers. `step` counts micro-steps.
TorchValue python_random_states(
    const SavedState& rank_state,
    std::int64_t step);

}  // namespace accelerate::detail
