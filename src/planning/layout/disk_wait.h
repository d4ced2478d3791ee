#pragma once

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// Seconds of a step in which a rank only waits for its files, which the ranks
/// of a node share; 0 if it has none. `parameters`: on the rank if all were
/// gathered. `backwards`: seconds of the forwards and backwards, behind which
/// weights are read and gradients written; `optimizer`: of the optimizer's
/// step, whose reads and writes overlap one another and its computing.
double disk_wait(
    const LayoutCase& of,
    double parameters,
    double backwards,
    double optimizer);

}  // namespace accelerate::detail
