#pragma once

#include <memory>
#include <optional>

#include <accelerate/parallel.h>

#include "engines/fp8_recipe.h"
#include "parallel/shard/float8_gather.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Computes the model's linear layers in float8, as the recipe says
/// (precision/fp8). Comes after all strategies that replace the memory of
/// parameters, which it does not touch. Ranks of the gradient group agree on
/// the amaxes of delayed scaling at each optimizer step, in one message.
/// `whole_model`: the model that the prepared module is a stage of, in whose
/// order layers are chosen; null if the module is the whole model.
std::unique_ptr<Strategy> make_float8(
    const Mesh& mesh,
    const Float8Request& request,
    std::shared_ptr<const torch::nn::Module> whole_model);

/// The weights of those layers that may be gathered in float8, if the recipe
/// says so; unset: none. Excludes weights that other modules also read.
std::optional<Float8Gather> float8_gather_of(
    const Float8Request& request,
    std::shared_ptr<const torch::nn::Module> whole_model);

}  // namespace accelerate::detail
