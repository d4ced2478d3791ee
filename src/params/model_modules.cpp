#include "params/model_modules.h"

#include <unordered_map>

#include <torch/nn/module.h>

namespace accelerate::detail {

namespace {

class ModuleWalk {
 public:
  ModuleNode visit(const torch::nn::Module& module, const std::string& name) {
    ModuleNode node;
    node.name = name;
    node.class_name = module.name();
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      add(node.parameters, item.key(), item.value());
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      add(node.buffers, item.key(), item.value());
    for (const auto& child : module.named_children()) {
      if (child.value())
        node.children.push_back(visit(*child.value(), child.key()));
    }
    return node;
  }

 private:
  void add(
      std::vector<ModuleTensor>& tensors,
      const std::string& name,
      const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [place, is_new] =
        ids_.emplace(tensor.unsafeGetTensorImpl(), ids_.size());
    tensors.push_back(
        {name,
         std::string(c10::getDtypeNames(tensor.scalar_type()).first),
         tensor.numel(),
         static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size(),
         place->second,
         tensor.sizes().vec()});
  }

  std::unordered_map<const void*, std::uint64_t> ids_;
};

}  // namespace

ModuleNode module_tree(const torch::nn::Module& module) {
  return ModuleWalk().visit(module, "");
}

}  // namespace accelerate::detail
