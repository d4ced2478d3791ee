#pragma once

#include <memory>

#include <accelerate/parallel.h>

#include "engines/fp8_recipe.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Makes scaled_dot_product_attention in forwards of the model use queries,
/// keys and values rounded to float8 (precision/fp8/float8_attention.h). Ranks
/// that divide a sequence agree on scales.
std::unique_ptr<Strategy> make_float8_attention(
    const Mesh& mesh,
    const Float8Request& request);

}  // namespace accelerate::detail
