#include "modules/module_tree.h"

#include <algorithm>
#include <map>

#include "base/text.h"

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
  return std::any_of(
      class_names.begin(), class_names.end(), [&](const std::string& name) {
        return is_class(module, name);
      });
}

}  // namespace accelerate::detail
