#pragma once

#include <string_view>
#include <type_traits>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

/// Returns `value`. Throws ConfigError if it is NaN or less than `least`:
/// "[train] local_sgd_steps must be at least 1, but is 0".
template <class Number>
Number require_at_least(
    std::string_view area,
    std::string_view name,
    Number value,
    std::type_identity_t<Number> least) {
  if (value >= least) return value;
  throw ConfigError(format(
      "[{}] {} must be at least {}, but is {}", area, name, least, value));
}

}  // namespace accelerate::detail
