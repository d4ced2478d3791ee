#pragma once

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// The memory of the rank that needs most. Activations as Korthikanti et al.
/// (2022) count them, with attention that does not keep its weights.
LayoutMemory layout_memory(const LayoutCase& of);

/// A lower bound of it, found in no time.
double least_bytes(const LayoutCase& of);

}  // namespace accelerate::detail
