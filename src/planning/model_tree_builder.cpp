#include "planning/model_tree_builder.h"

#include <algorithm>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The name of the parent module, and the name within it.
std::pair<std::string_view, std::string_view> split_name(
    std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {{}, name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

ModelTreeBuilder::ModelTreeBuilder(std::string where)
    : where_(std::move(where)), entries_(1) {}

void ModelTreeBuilder::add_module(
    std::string_view path,
    std::string_view class_name) {
  entries_[at(path)].module.class_name = class_name;
}

void ModelTreeBuilder::add_parameter(
    std::string_view name,
    const safetensors::Shape& shape) {
  const std::size_t module = at(split_name(name).first);
  entries_[module].module.parameters.push_back(
      tensor_of(name, "float32", shape));
}

void ModelTreeBuilder::add_buffer(
    std::string_view name,
    const safetensors::Shape& shape) {
  const std::size_t module = at(split_name(name).first);
  entries_[module].module.buffers.push_back(tensor_of(name, "int64", shape));
}

ModuleNode ModelTreeBuilder::finish() {
  ModuleNode root = assemble(0);
  entries_ = std::deque<Entry>(1);
  by_name_.clear();
  return root;
}

std::size_t ModelTreeBuilder::at(std::string_view path) {
  if (path.empty()) return 0;
  const auto num_dots = static_cast<std::size_t>(std::ranges::count(path, '.'));
  if (num_dots >= kMostDepth) {
    throw ConfigError(format(
        "[estimate-memory] {}: a tensor in {} is inside {} modules, but at "
        "most {} are read",
        where_,
        printable(path),
        num_dots + 1,
        kMostDepth));
  }
  std::size_t module = 0;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    module = child_of(module, path.substr(begin, end - begin));
    begin = end + 1;
  }
  return module;
}

std::size_t ModelTreeBuilder::child_of(
    std::size_t parent,
    std::string_view name) {
  // Names are usually sorted, so the child is the last one or a new one.
  const std::vector<std::size_t>& known = entries_[parent].children;
  if (!known.empty() && entries_[known.back()].module.name == name) {
    return known.back();
  }
  const auto found = by_name_.find({parent, name});
  if (found != by_name_.end()) return found->second;
  if (entries_.size() >= kMostModules) {
    throw ConfigError(format(
        "[estimate-memory] {} has more than {} modules; more are not read",
        where_,
        kMostModules));
  }
  const std::size_t child = entries_.size();
  entries_.emplace_back();
  entries_[child].module.name = name;
  entries_[parent].children.push_back(child);
  // The key is a view of the name that the entry owns.
  const std::string_view own_name = entries_[child].module.name;
  by_name_.emplace(std::pair(parent, own_name), child);
  return child;
}

ModuleTensor ModelTreeBuilder::tensor_of(
    std::string_view name,
    const char* dtype,
    const safetensors::Shape& shape) {
  const auto num_elements =
      safetensors::bytes_of(safetensors::Dtype::U8, shape);
  if (!num_elements || *num_elements > kMostElements - num_elements_) {
    throw ConfigError(format(
        "[estimate-memory] {}: with \"{}\", the model exceeds 2^56 elements, "
        "the most that are read",
        where_,
        printable(name)));
  }
  num_elements_ += *num_elements;
  return {
      std::string(split_name(name).second),
      dtype,
      static_cast<std::int64_t>(*num_elements),
      static_cast<std::uint64_t>(
          static_cast<double>(*num_elements) * dtype_bytes(dtype)),
      next_id_++};
}

ModuleNode ModelTreeBuilder::assemble(std::size_t entry) {
  ModuleNode module = std::move(entries_[entry].module);
  const std::vector<std::size_t> children = std::move(entries_[entry].children);
  module.children.reserve(children.size());
  for (const std::size_t child : children) {
    module.children.push_back(assemble(child));
  }
  return module;
}

}  // namespace accelerate::detail
