#pragma once

#include <map>
#include <memory>
#include <string>

#include <torch/nn/module.h>

#include "exported/load/weights.h"
#include "format/exported/exported_archive.h"

namespace accelerate::detail {

/// Makes the submodules of an exported program's root.
class ExportedTree {
 public:
  explicit ExportedTree(
      torch::nn::Module& root,
      std::map<std::string, std::string> classes);

  /// Returns the module with a dotted name, after creating it and its parents
  /// where missing. The root is not included.
  std::shared_ptr<torch::nn::Module> add(const std::string& name);
  /// An existing module; null for the root and other names.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> find(
      const std::string& name) const;
  /// Registers a tensor under its dotted name.
  void add_parameter(const std::string& name, const at::Tensor& tensor);
  void add_buffer(const std::string& name, const at::Tensor& tensor);

 private:
  torch::nn::Module& owner_of(const std::string& name);

  torch::nn::Module& root_;
  std::map<std::string, std::string> classes_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
};

}  // namespace accelerate::detail
