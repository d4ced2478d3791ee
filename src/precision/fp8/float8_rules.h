#pragma once

#include <accelerate/fp8.h>

#include "precision/fp8/float8_linear.h"

namespace accelerate::detail {

// Translate recipes with all fields set (engines/fp8_recipe.h) into rules for a
// layer's products.

Float8Rules float8_rules_of(const AORecipeKwargs& recipe);
Float8Rules float8_rules_of(const TERecipeKwargs& recipe);
Float8Rules float8_rules_of(const MSAMPRecipeKwargs& recipe);

}  // namespace accelerate::detail
