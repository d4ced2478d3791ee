#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/nn/module.h>

namespace accelerate::detail {

/// The modules of a tree by their dotted names, in order. Some are divided,
/// with all modules above them: the others right below those are the units
/// that stages have as a whole.
class ModuleNames {
 public:
  explicit ModuleNames(const torch::nn::Module& root);

  [[nodiscard]] bool contains(const std::string& name) const {
    return modules_.contains(name);
  }
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& at(
      const std::string& name) const {
    return modules_.at(name);
  }
  /// Empty for the root, and for null.
  [[nodiscard]] std::string name_of(const torch::nn::Module* module) const;

  /// Divides the modules above `name`; above a tensor, its owners.
  void divide_above(const std::string& name);
  [[nodiscard]] bool is_divided(const std::string& name) const {
    return name.empty() || divided_.contains(name);
  }
  [[nodiscard]] bool has_children(const std::string& name) const;
  /// The unit that contains, or is, a module or tensor; empty for divided
  /// modules and their own tensors.
  [[nodiscard]] std::string unit_of(const std::string& name) const;
  /// All units, in order.
  [[nodiscard]] std::vector<std::string> units() const;

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::unordered_map<const torch::nn::Module*, std::string> names_;
  std::set<std::string> divided_;
};

/// Names of the modules between which a model is best divided: the members of
/// its outermost lists (a transformer's blocks), and what is beside them.
std::vector<std::string> blocks_of(const torch::nn::Module& root);

/// The owner in a dotted name: "a.b" of "a.b.c"; empty for "a".
std::string owner_in(const std::string& name);

}  // namespace accelerate::detail
