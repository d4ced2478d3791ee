#pragma once

#include <memory>

#include <accelerate/parallel.h>

#include "engines/fp8_recipe.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Has scaled_dot_product_attention in forwards of the model take queries, keys
/// and values as float8 leaves them (precision/fp8/float8_attention.h). Ranks
/// that divide a sequence agree on scales.
std::unique_ptr<Strategy> make_float8_attention(
    const Mesh& mesh,
    const Float8Request& request);

}  // namespace accelerate::detail
