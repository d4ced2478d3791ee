#include "train/models/module_watch.h"

#include <algorithm>
#include <cstddef>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Gives access to a module's own parameters without copying their names.
struct OpenModule : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& parameters_of(
      const torch::nn::Module& module) {
    return module.*(&OpenModule::parameters_);
  }
};

template <class Visit>
void visit_tree(const torch::nn::Module& module, Visit& visit) {
  visit(&module);
  for (const auto& item : OpenModule::parameters_of(module)) {
    if (item.value().defined()) visit(item.value().unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) {
    if (child) visit_tree(*child, visit);
  }
}

}  // namespace

ModuleWatch::ModuleWatch(const torch::nn::Module& module)
    : parameters_(named_parameters(module)) {
  const auto note = [this](const void* part) { tree_.push_back(part); };
  visit_tree(module, note);
}

ModuleWatch::Named ModuleWatch::named_parameters(
    const torch::nn::Module& module) {
  Named named;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined())
      named.emplace_back(item.key(), item.value().unsafeGetTensorImpl());
  }
  return named;
}

void ModuleWatch::require_unchanged(const torch::nn::Module& module) {
  std::size_t count = 0;
  bool is_same = true;
  const auto compare = [&](const void* part) {
    is_same = is_same && count < tree_.size() && tree_[count] == part;
    ++count;
  };
  visit_tree(module, compare);
  if (is_same && count == tree_.size()) return;
  const Named now = named_parameters(module);
  const auto find = [](const Named& named, const std::string& name) {
    return std::find_if(named.begin(), named.end(), [&](const auto& item) {
      return item.first == name;
    });
  };
  std::vector<std::string> changes;
  for (const auto& [name, tensor] : now) {
    const auto before = find(parameters_, name);
    if (before == parameters_.end()) {
      changes.push_back(format("\"{}\" was added", name));
    } else if (before->second != tensor) {
      changes.push_back(format("\"{}\" was replaced", name));
    }
  }
  for (const auto& [name, tensor] : parameters_) {
    if (find(now, name) == now.end())
      changes.push_back(format("\"{}\" was removed", name));
  }
  if (!changes.empty()) {
    throw ConfigError(format(
        "[train] the parameters of a prepared model were changed after "
        "prepare(): {}; ranks would not average their gradients. Change the "
        "model before prepare(), or call free_memory() and prepare it anew",
        join(changes, ", ")));
  }
  *this = ModuleWatch(module);
}

}  // namespace accelerate::detail
