#include "parallel/tensor/divide_sequences.h"

#include <cstddef>
#include <map>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>

#include "modules/module_tree.h"
#include "parallel/tensor/elementwise.h"

namespace accelerate::detail {

namespace {

namespace nn = torch::nn;

// Inputs of linear layers may have any number of dimensions from 2 on.
const TensorPlacement kSequence = accelerate::Shard{-2};
// Where the layers of a Transformer have it: sequence x batch x width.
const TensorPlacement kTransformerSequence = accelerate::Shard{0};

template <class Impl>
bool is_exactly(const nn::Module& module) {
  // A class derived from it may compute something else.
  return typeid(module) == typeid(Impl);
}

bool is_norm_of_last_dim(const nn::Module& module) {
  return is_exactly<nn::LayerNormImpl>(module) &&
      module.as<nn::LayerNormImpl>()->options.normalized_shape().size() == 1;
}

class SequenceDivision {
 public:
  SequenceDivision(const nn::Module& root, ParallelizePlan& plan)
      : plan_(plan) {
    // The root may not belong to a shared_ptr, which named_modules() needs to
    // list it.
    modules_.emplace_back("", &root);
    for (const auto& item : root.named_modules({}, /*include_self=*/false))
      modules_.emplace_back(item.key(), item.value().get());
    for (std::size_t i = 0; i < plan.size(); ++i)
      place_in_plan_.emplace(plan[i].first, i);
    for (const auto& [name, module] : modules_) {
      ++num_names_[module];
      const auto parameters = module->named_parameters(/*recurse=*/false);
      for (const auto& parameter : parameters)
        ++num_users_[parameter.value().unsafeGetTensorImpl()];
    }
  }

  bool run() {
    for (const auto& [name, module] : modules_) {
      if (module->as<nn::SequentialImpl>() != nullptr) divide(name, *module);
      if (module->as<nn::TransformerEncoderLayerImpl>() != nullptr)
        divide_layer(name, "norm1", "norm2");
      if (module->as<nn::TransformerDecoderLayerImpl>() != nullptr)
        divide_layer(name, "norm2", "norm3");
    }
    for (const std::string& norm : norms_)
      plan_.emplace_back(norm, SequenceParallel{});
    plan_.insert(plan_.end(), prepared_.begin(), prepared_.end());
    return has_divided_;
  }

 private:
  // Whether nothing else uses the module or its parameters, which must have one
  // style.
  [[nodiscard]] bool is_used_once(const nn::Module& module) const {
    if (num_names_.at(&module) != 1) return false;
    const auto parameters = module.named_parameters(/*recurse=*/false);
    for (const auto& parameter : parameters) {
      if (num_users_.at(parameter.value().unsafeGetTensorImpl()) != 1)
        return false;
    }
    return true;
  }

  template <class Style>
  Style* linear_of_style(const std::string& name, const nn::Module& module) {
    const auto found = place_in_plan_.find(name);
    if (found == place_in_plan_.end() || !is_exactly<nn::LinearImpl>(module) ||
        !is_used_once(module))
      return nullptr;
    return std::get_if<Style>(&plan_[found->second].second);
  }

  void divide(const std::string& sequential, const nn::Module& module) {
    RowwiseParallel* before = nullptr;
    std::vector<std::string> norms;
    int num_between = 0;
    for (const auto& item : module.named_children()) {
      const nn::Module& layer = *item.value();
      const std::string name = dotted_name(sequential, item.key());
      if (auto* const row = linear_of_style<RowwiseParallel>(name, layer)) {
        before =
            row->output_layouts == TensorPlacement(Replicate{}) ? row : nullptr;
        norms.clear();
        num_between = 0;
      } else if (
          auto* const column = linear_of_style<ColwiseParallel>(name, layer)) {
        if (before != nullptr && num_between > 0 &&
            column->input_layouts == TensorPlacement(Replicate{})) {
          before->output_layouts = kSequence;
          column->input_layouts = kSequence;
          norms_.insert(norms_.end(), norms.begin(), norms.end());
          has_divided_ = true;
        }
        before = nullptr;
      } else if (is_norm_of_last_dim(layer) && is_used_once(layer)) {
        ++num_between;
        if (!layer.parameters(/*recurse=*/false).empty()) norms.push_back(name);
      } else if (is_elementwise(layer)) {
        ++num_between;
      } else {
        before = nullptr;
      }
    }
  }

  template <class Style>
  Style* linear_of_style(const std::string& name) {
    const nn::Module* const module = find(name);
    return module == nullptr ? nullptr : linear_of_style<Style>(name, *module);
  }

  // `before` and `after` are the norms around the feed-forward. The plan splits
  // that only where the layer's code is known.
  void divide_layer(
      const std::string& layer,
      const std::string& before,
      const std::string& after) {
    auto* const up =
        linear_of_style<ColwiseParallel>(dotted_name(layer, "linear1"));
    auto* const down =
        linear_of_style<RowwiseParallel>(dotted_name(layer, "linear2"));
    if (up == nullptr || down == nullptr ||
        up->input_layouts != TensorPlacement(Replicate{}) ||
        down->output_layouts != TensorPlacement(Replicate{}))
      return;
    for (const std::string& norm : {before, after}) {
      const nn::Module* const module = find(dotted_name(layer, norm));
      if (module == nullptr || !is_norm_of_last_dim(*module) ||
          !is_used_once(*module) || module->parameters(false).empty())
        return;
    }
    up->input_layouts = kTransformerSequence;
    down->output_layouts = kTransformerSequence;
    prepared_.emplace_back(
        dotted_name(layer, before),
        PrepareModuleInput{Replicate{}, kTransformerSequence});
    prepared_.emplace_back(
        dotted_name(layer, after),
        PrepareModuleOutput{kTransformerSequence, Replicate{}});
    has_divided_ = true;
  }

  [[nodiscard]] const nn::Module* find(const std::string& wanted) const {
    for (const auto& [name, module] : modules_) {
      if (name == wanted) return module;
    }
    return nullptr;
  }

  ParallelizePlan& plan_;
  std::vector<std::pair<std::string, const nn::Module*>> modules_;
  std::map<std::string, std::size_t> place_in_plan_;
  std::map<const nn::Module*, int> num_names_;
  std::map<const c10::TensorImpl*, int> num_users_;
  std::vector<std::string> norms_;
  ParallelizePlan prepared_;
  bool has_divided_ = false;
};

}  // namespace

bool divide_sequences(const nn::Module& module, ParallelizePlan& plan) {
  return SequenceDivision(module, plan).run();
}

}  // namespace accelerate::detail
