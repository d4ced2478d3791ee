#include "train/models/module_watch.h"

#include <algorithm>
#include <cstddef>

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/watched_tensor.h"
#include "train/session/prepared.h"
#include "train/step/step_watch.h"

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

using PublicTensors = std::vector<std::pair<const char*, const at::Tensor*>>;

template <class Layer>
void add_weight_of(const torch::nn::Module& module, PublicTensors& found) {
  const auto* const layer = dynamic_cast<const Layer*>(&module);
  if (layer == nullptr) return;
  found.emplace_back("weight", &layer->weight);
  if constexpr (requires { layer->bias.defined(); })
    found.emplace_back("bias", &layer->bias);
}

template <class... Layers>
PublicTensors weights_of(const torch::nn::Module& module) {
  PublicTensors found;
  (add_weight_of<Layers>(module, found), ...);
  return found;
}

PublicTensors public_tensors_of(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return weights_of<
      nn::LinearImpl,
      nn::BilinearImpl,
      nn::EmbeddingImpl,
      nn::EmbeddingBagImpl,
      nn::Conv1dImpl,
      nn::Conv2dImpl,
      nn::Conv3dImpl,
      nn::ConvTranspose1dImpl,
      nn::ConvTranspose2dImpl,
      nn::ConvTranspose3dImpl,
      nn::BatchNorm1dImpl,
      nn::BatchNorm2dImpl,
      nn::BatchNorm3dImpl,
      nn::InstanceNorm1dImpl,
      nn::InstanceNorm2dImpl,
      nn::InstanceNorm3dImpl,
      nn::LayerNormImpl,
      nn::GroupNormImpl,
      nn::PReLUImpl>(module);
}

}  // namespace

std::vector<ModuleWatch::Member> ModuleWatch::members_of(
    const torch::nn::Module& module) {
  std::vector<Member> members;
  const auto add = [&](const std::string& prefix,
                       const torch::nn::Module& layer,
                       const std::shared_ptr<const torch::nn::Module>& owner) {
    for (const auto& [name, tensor] : public_tensors_of(layer)) {
      if (!tensor->defined()) continue;
      members.push_back(
          {owner, prefix + name, tensor, tensor->unsafeGetTensorImpl()});
    }
  };
  add("", module, nullptr);
  for (const auto& item : module.named_modules({}, /*include_self=*/false))
    add(item.key() + ".", *item.value(), item.value());
  return members;
}

ModuleWatch::ModuleWatch(const torch::nn::Module& module)
    : parameters_(named_parameters(module)) {
  const auto note = [this](const void* part) { tree_.push_back(part); };
  visit_tree(module, note);
  members_ = members_of(module);
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

bool ModuleWatch::is_registered(const at::Tensor& tensor) const {
  return std::ranges::any_of(parameters_, [&](const auto& item) {
    return item.second == tensor.unsafeGetTensorImpl();
  });
}

std::vector<std::string> ModuleWatch::changes(const torch::nn::Module& module) {
  std::size_t count = 0;
  bool is_same = true;
  const auto compare = [&](const void* part) {
    is_same = is_same && count < tree_.size() && tree_[count] == part;
    ++count;
  };
  visit_tree(module, compare);
  std::vector<std::string> changes;
  for (const Member& member : members_) {
    const at::Tensor& now = *member.tensor;
    // A weight that is computed (normed, say) is not a parameter.
    if (now.unsafeGetTensorImpl() == member.value || !now.defined() ||
        !now.is_leaf() || !now.requires_grad() || is_registered(now)) {
      continue;
    }
    changes.push_back(format(
        "a tensor that is not registered was assigned to \"{}\"", member.name));
  }
  if (is_same && count == tree_.size()) return changes;
  const Named now = named_parameters(module);
  const auto find = [](const Named& named, const std::string& name) {
    return std::ranges::find_if(
        named, [&](const auto& item) { return item.first == name; });
  };
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
  if (changes.empty()) *this = ModuleWatch(module);
  return changes;
}

void follow_modules(PreparedItems& prepared) {
  prepared.step_watch->require_steps_of_handles();
  for (const auto& model : prepared.models) {
    if (!model->watches.module) continue;
    const auto changes = model->watches.module->changes(*model->module);
    if (changes.empty()) continue;
    if (!model->strategies.is_idle() || model->stage) {
      throw ConfigError(format(
          "[train] the parameters of a prepared model were changed after "
          "prepare(): {}; ranks would not average their gradients. Change the "
          "model before prepare(), or call free_memory() and prepare it anew",
          join(changes, ", ")));
    }
    // LibTorch alone trains the model, so only names matter.
    model->table = ParameterTable(*model->module, {}, &is_offloaded_or_coded);
    *model->watches.module = ModuleWatch(*model->module);
  }
}

}  // namespace accelerate::detail
