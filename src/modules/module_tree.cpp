#include "modules/module_tree.h"

#include <algorithm>
#include <map>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::uint64_t sum_bytes(const std::vector<ModuleTensor>& tensors) {
  std::uint64_t total = 0;
  for (const ModuleTensor& tensor : tensors) total += tensor.num_bytes;
  return total;
}

void collect_parameters(
    const ModuleNode& module,
    std::map<std::uint64_t, std::int64_t>& elements) {
  for (const ModuleTensor& parameter : module.parameters)
    elements.emplace(parameter.id, parameter.num_elements);
  for (const ModuleNode& child : module.children)
    collect_parameters(child, elements);
}

// Dotted names of each parameter, by the order of their first occurrences.
struct ParameterNames {
  std::map<std::uint64_t, std::size_t> place_of_id;
  std::vector<std::vector<std::string>> names;
};

// `prefix` is the module's name and a dot. Children append theirs while they
// are visited.
void collect_names(
    const ModuleNode& module,
    std::string& prefix,
    ParameterNames& found) {
  for (const ModuleTensor& parameter : module.parameters) {
    const auto [entry, is_new] =
        found.place_of_id.emplace(parameter.id, found.names.size());
    if (is_new) found.names.emplace_back();
    found.names[entry->second].push_back(prefix + parameter.name);
  }
  const std::size_t size = prefix.size();
  for (const ModuleNode& child : module.children) {
    prefix += child.name;
    prefix += '.';
    collect_names(child, prefix, found);
    prefix.resize(size);
  }
}

}  // namespace

std::string dotted_name(std::string_view parent, std::string_view name) {
  return parent.empty() ? std::string(name) : format("{}.{}", parent, name);
}

std::uint64_t total_bytes(const ModuleNode& module) {
  std::uint64_t total =
      sum_bytes(module.parameters) + sum_bytes(module.buffers);
  for (const ModuleNode& child : module.children) total += total_bytes(child);
  return total;
}

std::int64_t num_parameters(const ModuleNode& module) {
  std::map<std::uint64_t, std::int64_t> elements;
  collect_parameters(module, elements);
  std::int64_t sum = 0;
  for (const auto& [id, count] : elements) sum += count;
  return sum;
}

std::vector<std::vector<std::string>> tied_parameters(const ModuleNode& root) {
  ParameterNames found;
  std::string prefix;
  collect_names(root, prefix, found);
  std::erase_if(
      found.names, [](const auto& group) { return group.size() < 2; });
  for (auto& group : found.names) std::ranges::sort(group);
  return std::move(found.names);
}

bool is_class(const ModuleNode& module, std::string_view name) {
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

bool is_one_of(
    const ModuleNode& module,
    const std::vector<std::string>& class_names) {
  return std::ranges::any_of(class_names, [&](const std::string& name) {
    return is_class(module, name);
  });
}

}  // namespace accelerate::detail
