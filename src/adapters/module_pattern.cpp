#include <accelerate/adapters.h>

#include <algorithm>

#include "adapters/expression.h"

namespace accelerate {

bool ModulePattern::matches(const std::string& module_name) const {
  if (!expression_.empty())
    return detail::matches_expression(module_name, expression_);
  return std::ranges::any_of(names_, [&](const std::string& name) {
    return module_name == name || module_name.ends_with("." + name);
  });
}

}  // namespace accelerate
