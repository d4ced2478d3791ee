#include "parallel/units.h"

#include <algorithm>
#include <map>
#include <regex>
#include <unordered_map>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

std::string dotted(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : concat(parent, ".", name);
}

WrapNode node_of(
    const torch::nn::Module& module,
    const std::string& name,
    const ParameterTable& table) {
  WrapNode node{name, module.name(), {}, {}};
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (!item.value().defined()) continue;
    const Parameter* const row = table.find(item.value());
    if (row == nullptr) continue;
    node.parameters.emplace(
        static_cast<std::uint64_t>(row - table.rows().data()),
        item.value().numel());
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) {
      node.children.push_back(
          node_of(*child.value(), dotted(name, child.key()), table));
    }
  }
  return node;
}

bool has_parameters(const WrapNode& node) {
  return !node.parameters.empty() ||
      std::any_of(node.children.begin(), node.children.end(), has_parameters);
}

// The elements of containers, which are the same thing several times.
void find_blocks(const WrapNode& node, std::vector<std::string>& names) {
  const bool is_container =
      is_class(node, "ModuleList") || is_class(node, "Sequential");
  for (const WrapNode& child : node.children) {
    if (is_container && has_parameters(child)) {
      names.push_back(child.name);
    } else {
      find_blocks(child, names);
    }
  }
}

void find_by_predicate(
    const torch::nn::Module& module,
    const std::function<bool(const std::string&, const torch::nn::Module&)>&
        is_unit,
    std::vector<std::string>& names) {
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.value() && is_unit(item.key(), *item.value()))
      names.push_back(item.key());
  }
}

// The longest of `names` that `parameter` is below.
const std::string* innermost(
    const std::vector<std::string>& names,
    const std::string& parameter) {
  const std::string* found = nullptr;
  for (const std::string& name : names) {
    if (parameter.starts_with(concat(name, ".")) &&
        (found == nullptr || name.size() > found->size())) {
      found = &name;
    }
  }
  return found;
}

void find_batch_norms(const WrapNode& node, std::vector<std::string>& names) {
  for (const char* const name : {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}) {
    if (is_class(node, name)) names.push_back(node.name);
  }
  for (const WrapNode& child : node.children) find_batch_norms(child, names);
}

// Names of modules that match, in full.
std::vector<std::string> ignored_modules(
    const torch::nn::Module& module,
    const std::string& expression) {
  std::regex pattern;
  try {
    pattern = std::regex(expression);
  } catch (const std::regex_error& error) {
    throw ConfigError(concat(
        "[parallel] ignored_modules \"",
        expression,
        "\" is no regular expression: ",
        error.what()));
  }
  std::vector<std::string> names;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (std::regex_match(item.key(), pattern)) names.push_back(item.key());
  }
  return names;
}

}  // namespace

WrapNode module_tree(
    const torch::nn::Module& module,
    const ParameterTable& table) {
  return node_of(module, "", table);
}

UnitPlan plan_units(
    const torch::nn::Module& module,
    ParameterTable& table,
    const FullyShardedDataParallelOptions& options) {
  std::vector<std::string> names;
  if (options.custom_auto_wrap_policy) {
    find_by_predicate(module, options.custom_auto_wrap_policy, names);
  } else if (options.auto_wrap_policy) {
    names = wrapped_modules(module_tree(module, table), options);
  } else {
    find_blocks(module_tree(module, table), names);
  }
  std::vector<std::string> ignored;
  if (options.ignored_modules)
    ignored = ignored_modules(module, *options.ignored_modules);

  UnitPlan plan;
  find_batch_norms(module_tree(module, table), plan.full_precision_modules);
  plan.units.push_back({std::string(kRestOfModel), {}});
  std::map<std::string, std::size_t> by_name;
  for (Parameter& row : table.rows()) {
    if (innermost(plan.full_precision_modules, row.name) != nullptr)
      plan.full_precision.insert(&row);
    if (row.tensor.dim() == 0 || innermost(ignored, row.name) != nullptr) {
      plan.whole.push_back(&row);
      continue;
    }
    std::size_t unit = 0;
    if (const std::string* name = innermost(names, row.name)) {
      const auto [place, is_new] = by_name.emplace(*name, plan.units.size());
      if (is_new) plan.units.push_back({*name, {}});
      unit = place->second;
    }
    plan.units[unit].rows.push_back(&row);
  }
  std::erase_if(
      plan.units, [](const UnitOfRows& unit) { return unit.rows.empty(); });
  return plan;
}

}  // namespace accelerate::detail
