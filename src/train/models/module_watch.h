#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Which modules and parameters a prepared model has, to notice those that the
/// program adds, removes or replaces afterwards.
class ModuleWatch {
 public:
  explicit ModuleWatch(const torch::nn::Module& module);

  /// Describes parameters which have come, gone, or become another tensor, and
  /// members of LibTorch's layers (`linear->weight = x`) which have become
  /// parameters that no module has registered. Other changes of the tree are
  /// adopted. Costs one pass over the tree, without names.
  [[nodiscard]] std::vector<std::string> changes(
      const torch::nn::Module& module);

 private:
  using Named = std::vector<std::pair<std::string, const void*>>;
  /// A layer's public tensor, which its forward reads.
  struct Member {
    std::shared_ptr<const torch::nn::Module> owner;
    std::string name;
    const at::Tensor* tensor = nullptr;
    const void* value = nullptr;
  };
  static Named named_parameters(const torch::nn::Module& module);
  static std::vector<Member> members_of(const torch::nn::Module& module);
  [[nodiscard]] bool is_registered(const at::Tensor& tensor) const;

  /// The modules and their parameters in the order of the tree.
  std::vector<const void*> tree_;
  Named parameters_;
  std::vector<Member> members_;
};

}  // namespace accelerate::detail
