#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "comm/transport/shared_memory/progress/progress_engine.h"

namespace accelerate::detail {

/// Allocates bytes in memory that all ranks of the engine's connection map, for
/// reductions without copies. All ranks call it at the same place in their
/// order of collectives, with equal sizes. Returns undefined, on all ranks, if
/// the system provides no such memory.
[[nodiscard]] at::Tensor shared_tensor(
    ProgressEngine& engine,
    std::int64_t bytes);

}  // namespace accelerate::detail
