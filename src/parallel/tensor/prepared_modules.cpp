#include <algorithm>
#include <type_traits>
#include <variant>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "base/text/text.h"
#include "modules/module_tree.h"
#include "parallel/tensor/module_types.h"
#include "parallel/tensor/split_planner.h"

namespace accelerate::detail {

namespace {

// A module, and its dotted name.
struct NamedModule {
  std::string name;
  const torch::nn::Module* module = nullptr;
};

// Returns the first or last layer of a Sequential, whose input or result is the
// Sequential's own; any other module itself.
NamedModule outermost_layer(NamedModule found, bool is_first) {
  while (found.module->as<torch::nn::SequentialImpl>() != nullptr) {
    const auto children = found.module->named_children();
    if (children.is_empty()) break;
    const auto& child = is_first ? children.front() : children.back();
    found = {dotted_name(found.name, child.key()), child.value().get()};
  }
  return found;
}

// Returns how to call a module that reads its weight first; nothing for other
// modules.
std::optional<PreparedModule> prepared_module(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  if (module.as<nn::LinearImpl>() != nullptr)
    return PreparedModule{
        .kind = WholeModuleKind::product, .num_mixed_dims = 1};
  if (module.as<nn::EmbeddingImpl>() != nullptr)
    return PreparedModule{.kind = WholeModuleKind::embedding};
  if (const auto* const norm = module.as<nn::LayerNormImpl>()) {
    const std::size_t num_dims = norm->options.normalized_shape().size();
    return PreparedModule{
        .kind = WholeModuleKind::norm,
        .num_mixed_dims = static_cast<std::int64_t>(num_dims)};
  }
  if (is_one_of_types<
          nn::GroupNormImpl,
          nn::BatchNorm1dImpl,
          nn::BatchNorm2dImpl,
          nn::BatchNorm3dImpl>(module))
    return PreparedModule{.kind = WholeModuleKind::norm};
  if (is_one_of_types<nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl>(module))
    return PreparedModule{.kind = WholeModuleKind::convolution};
  return std::nullopt;
}

bool treats_positions_alone(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return is_one_of_types<nn::LinearImpl, nn::EmbeddingImpl, nn::LayerNormImpl>(
      module);
}

constexpr std::string_view kUnseen =
    "cannot be prepared: its call cannot be seen, since it is not one of "
    "LibTorch's layers that read a weight first (Linear, Embedding, a norm, a "
    "convolution), nor a Sequential that begins and ends with one; name the "
    "layers in it that take its input or return its result";

}  // namespace

void SplitPlanner::prepare(
    const std::string& name,
    const torch::nn::Module& module,
    const std::optional<LayoutChange>& input,
    const std::optional<LayoutChange>& output) {
  if ((!input || input->from == input->to) &&
      (!output || output->from == output->to)) {
    layer_.name = name;
    return complain(
        "is prepared, but its layouts and the desired ones are the same; say "
        "what it gets and returns, or leave it out of the plan");
  }
  if (input) {
    NamedModule first = outermost_layer({name, &module}, true);
    add_preparation(std::move(first.name), first.module, true, *input);
  }
  if (output) {
    NamedModule last = outermost_layer({name, &module}, false);
    add_preparation(std::move(last.name), last.module, false, *output);
  }
}

void SplitPlanner::add_preparation(
    std::string name,
    const torch::nn::Module* module,
    bool is_input,
    const LayoutChange& change) {
  auto found = std::find_if(
      preparations_.begin(), preparations_.end(), [&](const auto& each) {
        return each.module == module;
      });
  if (found == preparations_.end()) {
    found = preparations_.insert(
        found, Preparation{.name = std::move(name), .module = module});
  }
  std::optional<LayoutChange>& side = is_input ? found->input : found->output;
  if (side && *side != change) {
    layer_.name = found->name;
    complain(format(
        "gets {} layouts from two patterns, which differ",
        is_input ? "input" : "output"));
  }
  side = change;
}

bool SplitPlanner::merge(const Preparation& each) {
  for (StyledModule& styled : styled_) {
    if (styled.module != each.module) continue;
    layer_ = Layer(each.name, *each.module);
    return std::visit(
        [&](auto& style) {
          using Style = std::decay_t<decltype(style)>;
          if constexpr (
              std::is_same_v<Style, ColwiseParallel> ||
              std::is_same_v<Style, RowwiseParallel>) {
            merge_into(style, each);
          } else {
            complain(
                "is both SequenceParallel and prepared; leave out "
                "SequenceParallel");
          }
          return true;
        },
        styled.style);
  }
  return false;
}

template <class Style>
void SplitPlanner::merge_into(Style& style, const Preparation& each) {
  const auto take_over = [&](TensorPlacement& layout,
                             const TensorPlacement& inner,
                             const TensorPlacement& outer,
                             std::string_view side) {
    if (layout != inner) {
      complain(format(
          "is split, and its {}_layouts are not those that it is prepared for; "
          "give both the same layout",
          side));
    }
    layout = outer;
  };
  if (each.input && layer_.module->as<torch::nn::EmbeddingImpl>() != nullptr) {
    return complain(
        "is a split embedding, which takes the indices as they are; leave out "
        "the preparation of its input");
  }
  if (each.input) {
    take_over(style.input_layouts, each.input->to, each.input->from, "input");
  }
  if (each.output) {
    take_over(
        style.output_layouts, each.output->from, each.output->to, "output");
  }
}

void SplitPlanner::apply_preparation(const Preparation& each) {
  layer_ = Layer(each.name, *each.module);
  const std::optional<PreparedModule> kind = prepared_module(*layer_.module);
  if (!kind) return complain(kUnseen);
  PreparedModule use = *kind;
  // A module that is not split returns the layout that it works on.
  const TensorPlacement within =
      each.input ? each.input->to : each.output->from;
  use.input = each.input.value_or(LayoutChange{within, within});
  use.output = each.output.value_or(LayoutChange{within, within});
  if (use.works_on_slices() != (slice_in(use.output.from) != nullptr)) {
    return complain(
        "stays whole, so it returns slices if and only if it gets slices, but "
        "desired_input_layouts and output_layouts differ in that");
  }
  if (use.works_on_slices() && !treats_positions_alone(*layer_.module)) {
    return complain(
        "mixes positions, or computes statistics over them, so it cannot work "
        "on slices; set its desired_input_layouts to Replicate{}");
  }
  const std::size_t before = num_parameters_;
  for (const char* const key : {"weight", "bias"}) {
    SplitParameter* const split = entry(key);
    if (split == nullptr) continue;
    if (split->is_watched() || split->dim) {
      if (split->prepared != use) {
        complain(format(
            "uses \"{}\" in another way than \"{}\", which shares it; use the "
            "same style for both",
            split->name,
            split->module));
      }
      continue;
    }
    split->prepared = use;
    split->sums_gradient =
        key == std::string_view("bias") && slice_in(use.output.to) != nullptr;
  }
  if (num_parameters_ == before) {
    complain(
        "has no parameters, so its call cannot be seen; prepare the layer "
        "before or after it");
  }
}

}  // namespace accelerate::detail
