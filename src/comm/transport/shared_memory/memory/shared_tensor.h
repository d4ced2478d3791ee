#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "comm/transport/shared_memory/waiting/progress_engine.h"

namespace accelerate::detail {

/// Bytes in memory that the ranks of the engine's connection map together, for
/// reductions without copies. All ranks call it at the same place in their order
/// of collectives, with equal sizes. Undefined, on all ranks, where the system
/// gives no such memory.
[[nodiscard]] at::Tensor shared_tensor(
    ProgressEngine& engine,
    std::int64_t bytes);

}  // namespace accelerate::detail
