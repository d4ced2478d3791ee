#include "parallel/tensor/divide_sequences.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include "modules/module_tree.h"
#include "parallel/tensor/elementwise.h"

namespace accelerate::detail {

namespace {

namespace nn = torch::nn;

// Inputs of linear layers may have 2 or more dimensions.
const TensorPlacement kSequence = accelerate::Shard{-2};
// The layers of a Transformer have sequence x batch x width.
const TensorPlacement kTransformerSequence = accelerate::Shard{0};

// Names of a Transformer layer's norms, by what they come before or after.
struct LayerNorms {
  std::string_view after_self_attention;
  std::string_view before_feed_forward;
  std::string_view after_feed_forward;
};

constexpr LayerNorms kEncoderNorms{"norm1", "norm1", "norm2"};
constexpr LayerNorms kDecoderNorms{"norm1", "norm2", "norm3"};

template <class Impl>
bool is_exactly(const nn::Module& module) {
  // A derived class may compute something else.
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
    // The root might not be owned by a shared_ptr, which named_modules() needs
    // to list it.
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
        divide_layer(name, kEncoderNorms);
      if (module->as<nn::TransformerDecoderLayerImpl>() != nullptr)
        divide_layer(name, kDecoderNorms);
    }
    for (const auto& [name, module] : modules_) {
      if (is_exactly<nn::TransformerEncoderImpl>(*module))
        join_layers(name, kEncoderNorms);
      if (is_exactly<nn::TransformerDecoderImpl>(*module))
        join_layers(name, kDecoderNorms);
    }
    plan_.insert(plan_.end(), norms_.begin(), norms_.end());
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
          for (const std::string& norm : norms)
            set_norm(norm, SequenceParallel{});
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

  // Requires a norm of the last dimension, with parameters that show where it
  // is called.
  [[nodiscard]] bool can_divide_norm(const std::string& name) const {
    const nn::Module* const module = find(name);
    return module != nullptr && is_norm_of_last_dim(*module) &&
        is_used_once(*module) && !module->parameters(false).empty();
  }

  // The plan splits a feed-forward only where the layer's code is known.
  void divide_layer(const std::string& layer, const LayerNorms& norms) {
    auto* const up =
        linear_of_style<ColwiseParallel>(dotted_name(layer, "linear1"));
    auto* const down =
        linear_of_style<RowwiseParallel>(dotted_name(layer, "linear2"));
    const std::string before = dotted_name(layer, norms.before_feed_forward);
    const std::string after = dotted_name(layer, norms.after_feed_forward);
    if (up == nullptr || down == nullptr ||
        up->input_layouts != TensorPlacement(Replicate{}) ||
        down->output_layouts != TensorPlacement(Replicate{}) ||
        !can_divide_norm(before) || !can_divide_norm(after))
      return;
    up->input_layouts = kTransformerSequence;
    down->output_layouts = kTransformerSequence;
    set_norm(before, PrepareModuleInput{Replicate{}, kTransformerSequence});
    set_norm(after, PrepareModuleOutput{kTransformerSequence, Replicate{}});
    has_divided_ = true;
    divided_layers_.insert(layer);
  }

  // A self-attention that the plan splits by heads.
  struct Attention {
    ColwiseParallel* projections = nullptr;
    RowwiseParallel* out = nullptr;
  };

  std::optional<Attention> attention_of(const std::string& layer) {
    const std::string name = dotted_name(layer, "self_attn");
    const nn::Module* const module = find(name);
    if (module == nullptr || !is_exactly<nn::MultiheadAttentionImpl>(*module) ||
        !is_used_once(*module))
      return std::nullopt;
    if (!module->as<nn::MultiheadAttentionImpl>()->_qkv_same_embed_dim)
      return std::nullopt;
    const auto found = place_in_plan_.find(name);
    auto* const projections = found == place_in_plan_.end()
        ? nullptr
        : std::get_if<ColwiseParallel>(&plan_[found->second].second);
    auto* const out =
        linear_of_style<RowwiseParallel>(dotted_name(name, "out_proj"));
    if (projections == nullptr || out == nullptr ||
        projections->input_layouts != TensorPlacement(Replicate{}) ||
        projections->output_layouts == TensorPlacement(Replicate{}) ||
        out->input_layouts == TensorPlacement(Replicate{}) ||
        out->output_layouts != TensorPlacement(Replicate{}))
      return std::nullopt;
    return Attention{projections, out};
  }

  // Passes slices from layer to layer of a stack, up to its last norm.
  void join_layers(const std::string& stack, const LayerNorms& norms) {
    const std::string layers = dotted_name(stack, "layers");
    const auto name_of = [&](int i) {
      return dotted_name(layers, std::to_string(i));
    };
    int last = 0;
    for (; find(name_of(last + 1)) != nullptr; ++last) {
      if (divided_layers_.count(name_of(last)) == 0) continue;
      join(name_of(last), name_of(last + 1), norms);
    }
    const std::string norm = dotted_name(stack, "norm");
    if (divided_layers_.count(name_of(last)) == 0 || !can_divide_norm(norm))
      return;
    set_norm(
        dotted_name(name_of(last), norms.after_feed_forward),
        SequenceParallel{});
    set_norm(norm, PrepareModuleOutput{kTransformerSequence, Replicate{}});
  }

  void join(
      const std::string& layer,
      const std::string& next,
      const LayerNorms& norms) {
    const std::string after_attention =
        dotted_name(next, norms.after_self_attention);
    const std::optional<Attention> attention = attention_of(next);
    if (divided_layers_.count(next) == 0 || !attention ||
        !can_divide_norm(after_attention))
      return;
    attention->projections->input_layouts = kTransformerSequence;
    attention->out->output_layouts = kTransformerSequence;
    set_norm(dotted_name(layer, norms.after_feed_forward), SequenceParallel{});
    if (norms.after_self_attention == norms.before_feed_forward) {
      set_norm(after_attention, SequenceParallel{});
    } else {
      set_norm(
          after_attention,
          PrepareModuleOutput{kTransformerSequence, Replicate{}});
    }
  }

  void set_norm(const std::string& name, ParallelStyle style) {
    const auto found =
        std::find_if(norms_.begin(), norms_.end(), [&](const auto& each) {
          return each.first == name;
        });
    if (found == norms_.end()) {
      norms_.emplace_back(name, std::move(style));
    } else {
      found->second = std::move(style);
    }
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
  /// Styles of norms.
  ParallelizePlan norms_;
  /// Layers of Transformers whose feed-forward works on slices.
  std::set<std::string> divided_layers_;
  bool has_divided_ = false;
};

}  // namespace

bool divide_sequences(const nn::Module& module, ParallelizePlan& plan) {
  return SequenceDivision(module, plan).run();
}

}  // namespace accelerate::detail
