#pragma once

#include <memory>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Context parallelism: the ranks along the axis have the same parameters and
/// different positions of the same sequences. `replicate` or `shard` averages
/// their gradients, and AttentionScope handles attention; this strategy only
/// says what such a model cannot do.
std::unique_ptr<Strategy> make_context();

}  // namespace accelerate::detail
