#include "engines/wrap_policy.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

using Parameters = std::map<std::uint64_t, std::int64_t>;

void collect(const WrapNode& module, Parameters& parameters) {
  parameters.insert(module.parameters.begin(), module.parameters.end());
  for (const WrapNode& child : module.children) collect(child, parameters);
}

std::int64_t num_elements(const WrapNode& module) {
  Parameters parameters;
  collect(module, parameters);
  std::int64_t sum = 0;
  for (const auto& [id, count] : parameters) sum += count;
  return sum;
}

bool is_one_of(
    const WrapNode& module,
    const std::vector<std::string>& classes) {
  return std::any_of(classes.begin(), classes.end(), [&](const auto& name) {
    return is_class(module, name);
  });
}

void wrap_by_class(
    const WrapNode& module,
    const std::vector<std::string>& classes,
    bool is_root,
    std::vector<std::string>& wrapped) {
  for (const WrapNode& child : module.children)
    wrap_by_class(child, classes, false, wrapped);
  if (!is_root && is_one_of(module, classes)) wrapped.push_back(module.name);
}

// Containers that run nothing themselves, and what is never cut.
const std::vector<std::string> kNeverWrapped{"ModuleList", "ModuleDict"};
const std::vector<std::string> kNeverEntered{"MultiheadAttention"};

// Returns how many elements were wrapped. A parent counts what its children
// left.
std::int64_t wrap_by_remainder(
    const WrapNode& module,
    std::int64_t least,
    bool is_root,
    std::vector<std::string>& wrapped) {
  const std::int64_t all = num_elements(module);
  if (all < least || is_one_of(module, kNeverEntered)) return 0;
  std::int64_t by_children = 0;
  for (const WrapNode& child : module.children)
    by_children += wrap_by_remainder(child, least, false, wrapped);
  if (is_root || all - by_children < least || is_one_of(module, kNeverWrapped))
    return by_children;
  wrapped.push_back(module.name);
  return all;
}

void wrap_by_size(
    const WrapNode& module,
    std::int64_t limit,
    bool is_root,
    std::vector<std::string>& wrapped) {
  for (const WrapNode& child : module.children)
    wrap_by_size(child, limit, false, wrapped);
  if (!is_root && num_elements(module) > limit) wrapped.push_back(module.name);
}

bool has_class(const WrapNode& module, const std::string& name) {
  return is_class(module, name) ||
      std::any_of(
             module.children.begin(),
             module.children.end(),
             [&](const WrapNode& child) { return has_class(child, name); });
}

}  // namespace

bool is_class(const WrapNode& module, const std::string& name) {
  const std::string_view full = module.class_name;
  if (full == name) return true;
  const std::size_t colon = full.rfind("::");
  std::string_view last =
      colon == std::string_view::npos ? full : full.substr(colon + 2);
  if (last == name) return true;
  if (!last.ends_with("Impl")) return false;
  last.remove_suffix(4);
  return last == name;
}

std::vector<std::string> wrapped_modules(
    const WrapNode& root,
    const FullyShardedDataParallelOptions& options) {
  std::vector<std::string> wrapped;
  switch (options.auto_wrap_policy.value_or(AutoWrapPolicy::no_wrap)) {
    case AutoWrapPolicy::no_wrap:
      break;
    case AutoWrapPolicy::transformer_based_wrap: {
      const auto classes = options.transformer_cls_names_to_wrap.value_or(
          std::vector<std::string>());
      std::vector<std::string> unknown;
      for (const std::string& name : classes) {
        if (!has_class(root, name)) unknown.push_back(concat("\"", name, "\""));
      }
      if (!unknown.empty()) {
        throw ConfigError(concat(
            "[parallel] transformer_cls_names_to_wrap names ",
            join(unknown, ", "),
            ", but no module of the model is of such a class; correct the "
            "name"));
      }
      wrap_by_class(root, classes, true, wrapped);
      break;
    }
    case AutoWrapPolicy::size_based_wrap: {
      const std::int64_t size = options.min_num_params.value_or(0);
      if (options.fsdp_version == 2) {
        wrap_by_size(root, size, true, wrapped);
      } else if (size > 0) {
        wrap_by_remainder(root, size, true, wrapped);
      }
      break;
    }
  }
  return wrapped;
}

}  // namespace accelerate::detail
