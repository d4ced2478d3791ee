#pragma once

#include "format/accelerate/saved_state.h"

namespace accelerate::detail {

/// The contents of a random_states_<rank>.pkl: the saved states of torch's
/// generators, and states of Python's and NumPy's generators, which C++
/// programs do not have. Those are Mersenne Twisters seeded from torch's state,
/// so that equal checkpoints give equal numbers. `step` counts micro-steps.
TorchValue python_random_states(
    const SavedState& rank_state,
    std::int64_t step);

}  // namespace accelerate::detail
