#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

/// Expands values to one per group, from one for all groups or one per group.
/// Equal values may be too few if the optimizer has gained groups since.
inline void spread(
    std::vector<double>& values,
    std::size_t num_groups,
    std::string_view name) {
  const bool are_equal = !values.empty() &&
      std::ranges::adjacent_find(values, std::not_equal_to<>()) == values.end();
  if (are_equal && values.size() < num_groups)
    values.resize(num_groups, values[0]);
  if (values.size() == num_groups) return;
  throw ConfigError(format(
      "[optim] {} values of {} do not fit {} parameter groups; pass one, or "
      "one per group",
      values.size(),
      name,
      num_groups));
}

}  // namespace accelerate::detail
