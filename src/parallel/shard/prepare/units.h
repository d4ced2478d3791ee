#pragma once

#include <cstdint>
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

/// Name of the root unit, of all rows that no other unit holds.
inline constexpr std::string_view kRootUnit = "the model";

/// Rows that are gathered together.
struct WrapUnit {
  std::string name;  ///< of the module, or kRootUnit
  std::vector<Parameter*> rows;
};

/// Units of rows. A row belongs to the innermost unit that holds it, or the
/// first of several that share it. The root unit comes first; units without
/// rows are left out. Rows of ignored modules, and scalars, go to `unsharded`
/// instead.
struct UnitPlan {
  std::vector<WrapUnit> units;
  std::vector<Parameter*> unsharded;
  /// Rows and module names of batch normalisation, which computes in its own
  /// precision.
  std::unordered_set<const Parameter*> full_precision;
  std::vector<std::string> full_precision_modules;
};
/// The elements of the largest shard if `num_ranks` share the rows.
std::int64_t largest_shard_of(const UnitPlan& plan, int num_ranks);
UnitPlan plan_units(
    const torch::nn::Module& module,
    ParameterTable& table,
    const ModuleSelection& selection,
    const std::optional<std::string>& ignored_modules = std::nullopt);

}  // namespace accelerate::detail
