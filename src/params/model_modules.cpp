#include "params/model_modules.h"

#include <limits>

#include <c10/util/flat_hash_map.h>
#include <torch/nn/module.h>

namespace accelerate::detail {

namespace {

// LibTorch's named_parameters() copies them into a hash table, which would take
// half the time of a walk.
class OwnParameters : public torch::nn::Module {
 public:
  static const torch::OrderedDict<std::string, at::Tensor>& of(
      const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

class ModuleWalk {
 public:
  ModuleNode visit(const torch::nn::Module& module, const std::string& name) {
    ModuleNode node;
    node.name = name;
    node.class_name = module.name();
    add(node.parameters, OwnParameters::of(module));
    add(node.buffers, module.named_buffers(/*recurse=*/false));
    const auto children = module.named_children();
    node.children.reserve(children.size());
    for (const auto& child : children) {
      if (child.value())
        node.children.push_back(visit(*child.value(), child.key()));
    }
    return node;
  }

 private:
  void add(
      std::vector<ModuleTensor>& tensors,
      const torch::OrderedDict<std::string, at::Tensor>& named) {
    tensors.reserve(named.size());
    for (const auto& item : named) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      tensors.push_back(
          {item.key(),
           std::string(c10::getDtypeNames(tensor.scalar_type()).first),
           tensor.numel(),
           static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size(),
           id_of(tensor),
           tensor.sizes().vec()});
    }
  }

  // Tensors tied by retie_parameters() are separate objects with the same
  // memory.
  std::uint64_t id_of(const at::Tensor& tensor) {
    const void* const memory = tensor.has_storage()
        ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
        : tensor.unsafeGetTensorImpl();
    const std::size_t id = seen_.size();
    const auto [last, is_new] = last_with_.emplace(memory, id);
    for (std::size_t i = is_new ? kNone : last->second; i != kNone;
         i = seen_[i].before) {
      const at::Tensor& other = seen_[i].tensor;
      const bool is_same = other.is_same(tensor) ||
          (tensor.has_storage() &&
           other.storage_offset() == tensor.storage_offset() &&
           other.sizes() == tensor.sizes() &&
           other.strides() == tensor.strides() &&
           other.scalar_type() == tensor.scalar_type());
      if (is_same) return i;
    }
    seen_.push_back({tensor, is_new ? kNone : last->second});
    last->second = id;
    return id;
  }

  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct Seen {
    at::Tensor tensor;
    /// The previous tensor with the same memory.
    std::size_t before = kNone;
  };

  std::vector<Seen> seen_;
  ska::flat_hash_map<const void*, std::size_t> last_with_;
};

}  // namespace

ModuleNode module_tree(const torch::nn::Module& module) {
  return ModuleWalk().visit(module, "");
}

}  // namespace accelerate::detail
