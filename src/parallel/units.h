#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <accelerate/fully_sharded.h>

#include "engines/wrap_policy.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What the unit of all that no other holds is called.
inline constexpr std::string_view kRestOfModel = "the model";

/// Rows that are gathered together.
struct UnitOfRows {
  std::string name;  ///< of the module, or kRestOfModel
  std::vector<Parameter*> rows;
};

/// The module as wrapping policies see it; parameters are numbered by their
/// rows.
WrapNode module_tree(
    const torch::nn::Module& module,
    const ParameterTable& table);

/// Every row that is split, in one unit each: the innermost unit that holds it,
/// the first of several that share it. Units without rows are left out; the
/// rest of the model is the first. Rows of ignored modules, and scalars, are in
/// none: `whole`. Without a policy, the elements of the outermost Sequentials
/// and ModuleLists are units.
struct UnitPlan {
  std::vector<UnitOfRows> units;
  std::vector<Parameter*> whole;
  /// Of batch normalisation, which computes in its own precision: rows, and
  /// names of modules.
  std::unordered_set<const Parameter*> full_precision;
  std::vector<std::string> full_precision_modules;
};
UnitPlan plan_units(
    const torch::nn::Module& module,
    ParameterTable& table,
    const FullyShardedDataParallelOptions& options);

}  // namespace accelerate::detail
