#pragma once

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Which modules and parameters a prepared model has, to notice those that the
/// program adds, removes or replaces afterwards.
class ModuleWatch {
 public:
  explicit ModuleWatch(const torch::nn::Module& module);

  /// Throws ConfigError that names a parameter which has come, gone, or become
  /// another tensor: no strategy knows it. Other changes of the tree are
  /// adopted. Costs one pass over the tree, without names.
  void require_unchanged(const torch::nn::Module& module);

 private:
  using Named = std::vector<std::pair<std::string, const void*>>;
  static Named named_parameters(const torch::nn::Module& module);

  /// The modules and their parameters in the order of the tree.
  std::vector<const void*> tree_;
  Named parameters_;
};

}  // namespace accelerate::detail
