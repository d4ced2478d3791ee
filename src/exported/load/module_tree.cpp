#include "exported/load/module_tree.h"

#include <algorithm>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/exported_model.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Deeper trees are rejected, since LibTorch visits modules recursively.
constexpr std::ptrdiff_t kMostLevels = 256;

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

[[noreturn]] void fail(const std::string& name, std::string_view what) {
  throw CheckpointError(format(
      "[exported] the program cannot be read: '{}' {}", printable(name), what));
}

}  // namespace

ExportedTree::ExportedTree(
    torch::nn::Module& root,
    std::map<std::string, std::string> classes)
    : root_(root), classes_(std::move(classes)) {}

std::shared_ptr<torch::nn::Module> ExportedTree::find(
    const std::string& name) const {
  const auto found = modules_.find(name);
  return found == modules_.end() ? nullptr : found->second;
}

std::shared_ptr<torch::nn::Module> ExportedTree::add(const std::string& name) {
  if (auto known = find(name)) return known;
  if (std::ranges::count(name, '.') > kMostLevels) {
    fail(name, "is a module in too many others");
  }
  const std::string parent = parent_of(name);
  torch::nn::Module& owner = parent.empty() ? root_ : *add(parent);
  // A container never runs, so no operator names its class.
  const auto found = classes_.find(name);
  auto module = std::make_shared<ExportedModuleImpl>(
      found == classes_.end() ? "ModuleList" : found->second);
  if (last_part(name).empty()) fail(name, "is not the name of a module");
  owner.register_module(last_part(name), module);
  modules_.emplace(name, module);
  return module;
}

torch::nn::Module& ExportedTree::owner_of(const std::string& name) {
  const std::string parent = parent_of(name);
  if (last_part(name).empty()) fail(name, "is not the name of a tensor");
  return parent.empty() ? root_ : *add(parent);
}

void ExportedTree::add_parameter(
    const std::string& name,
    const at::Tensor& tensor) {
  owner_of(name).register_parameter(
      last_part(name), tensor, tensor.requires_grad());
}

void ExportedTree::add_buffer(
    const std::string& name,
    const at::Tensor& tensor) {
  owner_of(name).register_buffer(last_part(name), tensor);
}

}  // namespace accelerate::detail
