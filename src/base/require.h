#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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

/// Calls `body`, and adds the ConfigError that it throws, if any, to complaints
/// that are reported together. Other errors propagate.
template <class Body>
void attempt(std::vector<std::string>& complaints, const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
}

}  // namespace accelerate::detail
