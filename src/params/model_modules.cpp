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
    tensors.push_back(
        {name,
         std::string(c10::getDtypeNames(tensor.scalar_type()).first),
         tensor.numel(),
         static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size(),
         id_of(tensor),
         tensor.sizes().vec()});
  }

  // Tensors that retie_parameters() tied are objects of their own with the same
  // memory.
  std::uint64_t id_of(const at::Tensor& tensor) {
    const void* const memory = tensor.has_storage()
        ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
        : tensor.unsafeGetTensorImpl();
    const auto [begin, end] = seen_.equal_range(memory);
    for (auto it = begin; it != end; ++it) {
      const at::Tensor& other = it->second.tensor;
      const bool is_same = other.is_same(tensor) ||
          (tensor.has_storage() &&
           other.storage_offset() == tensor.storage_offset() &&
           other.sizes() == tensor.sizes() &&
           other.strides() == tensor.strides() &&
           other.scalar_type() == tensor.scalar_type());
      if (is_same) return it->second.id;
    }
    const std::uint64_t id = seen_.size();
    seen_.emplace(memory, Seen{tensor, id});
    return id;
  }

  struct Seen {
    at::Tensor tensor;
    std::uint64_t id = 0;
  };

  std::unordered_multimap<const void*, Seen> seen_;
};

}  // namespace

ModuleNode module_tree(const torch::nn::Module& module) {
  return ModuleWalk().visit(module, "");
}

}  // namespace accelerate::detail
