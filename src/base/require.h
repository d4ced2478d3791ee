#pragma once

#include <string_view>
#include <type_traits>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

/// Returns `value`. Throws ConfigError if it is NaN or less than `least`:
/// "[train] local_sgd_steps is 0; it is at least 1".
template <class Number>
Number require_at_least(
    std::string_view area,
    std::string_view name,
    Number value,
    std::type_identity_t<Number> least) {
  if (value >= least) return value;
  throw ConfigError(
      format("[{}] {} is {}; it is at least {}", area, name, value, least));
}

}  // namespace accelerate::detail
