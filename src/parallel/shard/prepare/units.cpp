#include "parallel/shard/prepare/units.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <regex>

#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "params/model_modules.h"

namespace accelerate::detail {

namespace {

void find_by_predicate(
    const torch::nn::Module& module,
    const ModulePredicate& is_unit,
    std::vector<std::string>& names) {
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.value() && is_unit(item.key(), *item.value()))
      names.push_back(item.key());
  }
}

// The longest of `names` that is a module containing `parameter`.
const std::string* innermost(
    const std::vector<std::string>& names,
    const std::string& parameter) {
  const std::string* found = nullptr;
  for (const std::string& name : names) {
    if (parameter.starts_with(format("{}.", name)) &&
        (found == nullptr || name.size() > found->size())) {
      found = &name;
    }
  }
  return found;
}

void find_batch_norms(
    const ModuleNode& module,
    const std::string& name,
    std::vector<std::string>& names) {
  if (is_one_of(module, {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}))
    names.push_back(name);
  for (const ModuleNode& child : module.children)
    find_batch_norms(child, dotted_name(name, child.name), names);
}

using RowsById = std::map<std::uint64_t, const Parameter*>;

void find_rows(
    const ModuleNode& module,
    const std::string& name,
    const ParameterTable& table,
    RowsById& rows) {
  for (const ModuleTensor& tensor : module.parameters) {
    const Parameter* const row =
        table.find(table.name_of(dotted_name(name, tensor.name)));
    if (row != nullptr) rows.emplace(tensor.id, row);
  }
  for (const ModuleNode& child : module.children)
    find_rows(child, dotted_name(name, child.name), table, rows);
}

// Policies see the sizes of full parameters: slices of another strategy can
// differ in size between ranks, which would then have different units.
void use_full_sizes(ModuleNode& module, const RowsById& rows) {
  for (ModuleTensor& tensor : module.parameters) {
    const auto row = rows.find(tensor.id);
    if (row == rows.end() || tensor.num_elements == 0) continue;
    const std::uint64_t element_bytes =
        tensor.num_bytes / static_cast<std::uint64_t>(tensor.num_elements);
    tensor.shape = row->second->layout.global_shape;
    tensor.num_elements = c10::multiply_integers(tensor.shape);
    tensor.num_bytes =
        static_cast<std::uint64_t>(tensor.num_elements) * element_bytes;
  }
  for (ModuleNode& child : module.children) use_full_sizes(child, rows);
}

// Modules whose full names match.
std::vector<std::string> matching_modules(
    const torch::nn::Module& module,
    const std::string& expression) {
  std::regex pattern;
  try {
    pattern = std::regex(expression);
  } catch (const std::regex_error& error) {
    throw ConfigError(format(
        "[parallel] ignored_modules must be a regular "
        "expression, but is \"{}\": {}",
        expression,
        error.what()));
  }
  std::vector<std::string> names;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (std::regex_match(item.key(), pattern)) names.push_back(item.key());
  }
  return names;
}

}  // namespace

UnitPlan plan_units(
    const torch::nn::Module& module,
    ParameterTable& table,
    const ModuleSelection& selection,
    const std::optional<std::string>& ignored_modules) {
  ModuleNode tree = module_tree(module);
  RowsById rows;
  find_rows(tree, "", table, rows);
  use_full_sizes(tree, rows);
  std::vector<std::string> names;
  if (selection.custom) {
    find_by_predicate(module, selection.custom, names);
  } else {
    names = wrapped_modules(tree, selection.policy);
  }
  std::vector<std::string> ignored;
  if (ignored_modules) ignored = matching_modules(module, *ignored_modules);

  UnitPlan plan;
  find_batch_norms(tree, "", plan.full_precision_modules);
  plan.units.push_back({std::string(kRootUnit), {}});
  std::map<std::string, std::size_t> by_name;
  for (Parameter& row : table.rows()) {
    const std::string key = table.key_of(row.name);
    if (innermost(plan.full_precision_modules, key) != nullptr)
      plan.full_precision.insert(&row);
    if (row.tensor.dim() == 0 || innermost(ignored, key) != nullptr) {
      plan.unsharded.push_back(&row);
      continue;
    }
    std::size_t unit = 0;
    if (const std::string* name = innermost(names, key)) {
      const auto [place, is_new] = by_name.emplace(*name, plan.units.size());
      if (is_new) plan.units.push_back({*name, {}});
      unit = place->second;
    }
    plan.units[unit].rows.push_back(&row);
  }
  std::erase_if(
      plan.units, [](const WrapUnit& unit) { return unit.rows.empty(); });
  return plan;
}

std::int64_t largest_shard_of(const UnitPlan& plan, int num_ranks) {
  std::int64_t largest = 0;
  for (const WrapUnit& unit : plan.units) {
    for (const Parameter* row : unit.rows)
      largest = std::max(largest, row->tensor.numel() / num_ranks);
  }
  return largest;
}

}  // namespace accelerate::detail
