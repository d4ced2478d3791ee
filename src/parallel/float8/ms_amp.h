#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/fp8.h>
#include <accelerate/parallel.h>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Implements what MS-AMP adds to float8 layers: gradients of their weights are
/// kept, and averaged over replicas, in float8 (level O1), and the moments of
/// Adam and AdamW are kept in 8 and 16 bits (O2). `recipe` has its level set.
/// Gradients are sent in messages of about `message_bytes`.
std::unique_ptr<Strategy> make_ms_amp(
    const Mesh& mesh,
    const MSAMPRecipeKwargs& recipe,
    std::int64_t message_bytes);

}  // namespace accelerate::detail
