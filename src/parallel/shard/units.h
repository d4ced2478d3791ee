#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "engines/training_request.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What the unit of all that no other holds is called.
inline constexpr std::string_view kRootUnit = "the model";

/// Rows that are gathered together.
struct WrapUnit {
  std::string name;  ///< of the module, or kRootUnit
  std::vector<Parameter*> rows;
};

/// Every row that is split, in one unit each: the innermost unit that holds it,
/// the first of several that share it. Units without rows are left out; the
/// rest of the model is the first. Rows of ignored modules, and scalars, are in
/// none: `whole`.
struct UnitPlan {
  std::vector<WrapUnit> units;
  std::vector<Parameter*> whole;
  /// Rows and module names of batch normalisation, which computes in its own
  /// precision.
  std::unordered_set<const Parameter*> full_precision;
  std::vector<std::string> full_precision_modules;
};
UnitPlan plan_units(
    const torch::nn::Module& module,
    ParameterTable& table,
    const ModuleSelection& selection,
    const std::optional<std::string>& ignored_modules = std::nullopt);

}  // namespace accelerate::detail
