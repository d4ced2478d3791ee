#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include <accelerate/fp8.h>

#include "config/environment.h"
#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

// Recipes with every field set: from the code, then the launcher, then
// Accelerate's defaults. These functions throw ConfigError for what Accelerate
// rejects.

AORecipeKwargs resolve_recipe(
    const AORecipeKwargs& given,
    const Settings& settings);
TERecipeKwargs resolve_recipe(
    const TERecipeKwargs& given,
    const Settings& settings,
    const Environment& environment);
MSAMPRecipeKwargs resolve_recipe(
    const MSAMPRecipeKwargs& given,
    const Settings& settings);
/// The recipe for which FP8RecipeKwargs stand: TE or MSAMP. Throws ConfigError
/// for any other.
std::string backend_of(const FP8RecipeKwargs& given, const Settings& settings);

/// A recipe with which models can be prepared, fields set as above.
struct Float8Request {
  std::variant<AORecipeKwargs, TERecipeKwargs, MSAMPRecipeKwargs> recipe =
      AORecipeKwargs();
  Float8Attention attention = Float8Attention::none;
  /// Steps between measurements of casts and products; 0 for never.
  std::int64_t statistics_interval = 0;
  /// True if the code, not a default, sets enable_fsdp_float8_all_gather.
  bool float8_all_gather_is_given = false;
};

/// Whether sharded weights are gathered in float8.
bool gathers_in_float8(const Float8Request& request);

/// The recipe from the code; otherwise the one for the launcher's fp8_backend,
/// or torchao's if that is unset as well. Throws ConfigError for a recipe that
/// this version does not support or that contradicts itself.
Float8Request read_float8_request(
    const std::optional<FP8Recipe>& given,
    const Settings& settings,
    const Environment& environment);

}  // namespace accelerate::detail
