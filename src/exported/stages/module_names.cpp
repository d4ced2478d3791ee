#include "exported/stages/module_names.h"

#include <algorithm>

namespace accelerate::detail {

namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
      text.find_first_not_of("0123456789") == std::string::npos;
}

// ModuleList and Sequential name their members by numbers.
bool is_list(const torch::nn::Module& module) {
  const auto children = module.named_children();
  return !children.is_empty() &&
      std::ranges::all_of(
          children, [](const auto& child) { return is_number(child.key()); });
}

bool has_list(const torch::nn::Module& module) {
  const auto children = module.children();
  return is_list(module) ||
      std::ranges::any_of(
             children, [](const auto& child) { return has_list(*child); });
}

void add_blocks(
    const torch::nn::Module& module,
    const std::string& name,
    std::vector<std::string>& blocks) {
  for (const auto& child : module.named_children()) {
    const std::string full =
        name.empty() ? child.key() : name + "." + child.key();
    if (!is_list(module) && has_list(*child.value())) {
      add_blocks(*child.value(), full, blocks);
    } else {
      blocks.push_back(full);
    }
  }
}

}  // namespace

std::string owner_in(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

ModuleNames::ModuleNames(const torch::nn::Module& root) {
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    order_.push_back(item.key());
    modules_.emplace(item.key(), item.value());
    names_.emplace(item.value().get(), item.key());
  }
}

std::string ModuleNames::name_of(const torch::nn::Module* module) const {
  const auto found = names_.find(module);
  return found == names_.end() ? std::string() : found->second;
}

void ModuleNames::divide_above(const std::string& name) {
  for (std::string owner = owner_in(name); !owner.empty();
       owner = owner_in(owner)) {
    divided_.insert(owner);
  }
}

bool ModuleNames::has_children(const std::string& name) const {
  return !modules_.at(name)->children().empty();
}

std::string ModuleNames::unit_of(const std::string& name) const {
  for (std::size_t dot = name.find('.'); dot != std::string::npos;
       dot = name.find('.', dot + 1)) {
    std::string owner = name.substr(0, dot);
    if (!divided_.contains(owner)) return owner;
  }
  const bool is_unit = contains(name) && !divided_.contains(name);
  return is_unit ? name : std::string();
}

std::vector<std::string> ModuleNames::units() const {
  std::vector<std::string> units;
  for (const std::string& name : order_) {
    if (unit_of(name) == name) units.push_back(name);
  }
  return units;
}

std::vector<std::string> blocks_of(const torch::nn::Module& root) {
  std::vector<std::string> blocks;
  add_blocks(root, "", blocks);
  return blocks;
}

}  // namespace accelerate::detail
