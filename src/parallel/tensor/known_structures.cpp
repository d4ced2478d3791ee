// Structures that PlanInference knows: layers of LibTorch, and feed-forward
// blocks by the names of common models.
#include <algorithm>
#include <array>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/transformerlayer.h>

#include <accelerate/parallel_layers.h>

#include "base/text/text.h"
#include "parallel/tensor/elementwise.h"
#include "parallel/tensor/module_types.h"
#include "parallel/tensor/plan_inference.h"

namespace accelerate::detail {

namespace {

// The last layer of a feed-forward block, and the layers that produce its
// input, as common models name them.
struct FeedForwardNames {
  std::string_view down;
  std::array<std::string_view, 2> up;
};

constexpr FeedForwardNames kFeedForwards[] = {
    {"down_proj", {"up_proj", "gate_proj"}},
    {"down", {"up", "gate"}},
    {"w2", {"w1", "w3"}},
    {"wo", {"wi", {}}},
    {"wo", {"wi_0", "wi_1"}},
    {"fc2", {"fc1", {}}},
    {"linear2", {"linear1", {}}},
    {"lin2", {"lin1", {}}},
    {"fc_out", {"fc_in", {}}},
    {"c_proj", {"c_fc", {}}},
    {"dense_4h_to_h", {"dense_h_to_4h", {}}},
};

// Whether a Transformer layer's activation is one of LibTorch's own.
template <class Layer>
bool has_known_activation(const Layer& layer) {
  return !std::holds_alternative<std::function<at::Tensor(const at::Tensor&)>>(
      layer.options.activation());
}

}  // namespace

void PlanInference::divide_structure(std::size_t i) {
  const nn::Module& module = *entries_[i].module;
  if (const auto* const layer = dynamic_cast<const ParallelLayer*>(&module)) {
    if (!entries_[i].name.empty())
      decide(entries_[i], layer->parallel_style(), "says so itself");
    return;
  }
  if (module.as<nn::MultiheadAttentionImpl>() != nullptr) {
    divide_attention(i);
  } else if (
      const auto* const layer = module.as<nn::TransformerEncoderLayerImpl>()) {
    if (has_known_activation(*layer)) divide_layer(i);
  } else if (
      const auto* const decoder =
          module.as<nn::TransformerDecoderLayerImpl>()) {
    if (has_known_activation(*decoder)) divide_layer(i);
  } else if (module.as<nn::SequentialImpl>() != nullptr) {
    divide_sequential(i);
  }
}

void PlanInference::divide_layer(std::size_t i) {
  Entry* const up = child(i, "linear1");
  Entry* const down = child(i, "linear2");
  if (can_split(up, 0) && can_split(down, 1))
    divide_pair(std::array{up}, *down, "the feed-forward of a Transformer");
}

// Why the heads of a MultiheadAttention cannot be divided among ranks; empty
// if they can.
std::string PlanInference::obstacle_to_heads(const Entry& attention) const {
  const std::int64_t heads =
      attention.module->as<nn::MultiheadAttentionImpl>()->options.num_heads();
  if (heads < num_ranks_)
    return format("{} heads are fewer than {} ranks", heads, num_ranks_);
  // A class derived from it may compute something else.
  return typeid(*attention.module) == typeid(nn::MultiheadAttentionImpl)
      ? std::string()
      : "a class derived from MultiheadAttention may need all heads";
}

void PlanInference::divide_attention(std::size_t i) {
  Entry& attention = entries_[i];
  bool has_heads = false;
  // A plan's pattern cannot name the model itself.
  if (attention.name.empty()) {
    return decide(
        attention,
        std::nullopt,
        "is the model itself, which a plan cannot "
        "name; put it into a module");
  }
  if (const Entry* const other = sharer_of(attention)) {
    decide(
        attention,
        std::nullopt,
        format("\"{}\" uses its weights as well", other->name));
  } else if (
      attention.module->as<nn::MultiheadAttentionImpl>()->options.embed_dim() <
      num_ranks_) {
    decide(
        attention, std::nullopt, "has fewer dimensions than there are ranks");
  } else if (const std::string obstacle = obstacle_to_heads(attention);
             obstacle.empty()) {
    has_heads = true;
    decide(attention, ColwiseParallel{}, "projections, by heads");
  } else if (attention.module->as<nn::MultiheadAttentionImpl>()
                 ->_qkv_same_embed_dim) {
    decide(
        attention,
        ColwiseParallel{.output_layouts = Replicate{}},
        format(
            "projections; {}, so they are gathered, and each rank computes "
            "all heads",
            obstacle));
  } else {
    decide(
        attention,
        std::nullopt,
        format("{}, and its projections are separate", obstacle));
  }
  divide_out_projection(i, has_heads);
}

// The last layer of a MultiheadAttention.
void PlanInference::divide_out_projection(std::size_t i, bool has_heads) {
  Entry* const out = child(i, "out_proj");
  if (out == nullptr || out->is_decided) return;
  // It has a class of its own in some versions of LibTorch.
  const auto* const linear = out->module->as<nn::LinearImpl>();
  if (linear == nullptr) return;
  if (sharer_of(*out) != nullptr || linear->weight.size(1) < num_ranks_) {
    return decide(
        *out, std::nullopt, "shares its weight, or is smaller than the ranks");
  }
  if (has_heads) {
    const std::int64_t heads = entries_[i]
                                   .module->as<nn::MultiheadAttentionImpl>()
                                   ->options.num_heads();
    return decide(
        *out,
        RowwiseParallel{.num_heads = heads},
        "takes the outputs of heads");
  }
  decide(
      *out,
      RowwiseParallel{.input_layouts = Replicate{}},
      "the last product of attention, whose input every rank has");
}

// Pairs of layers with only activations between them.
void PlanInference::divide_sequential(std::size_t i) {
  Entry* up = nullptr;
  for (const auto& item : entries_[i].module->named_children()) {
    Entry* const layer = child(i, item.key());
    if (layer == nullptr) continue;
    if (linear_of(*layer) == nullptr) {
      if (!is_elementwise(*layer->module)) up = nullptr;
      continue;
    }
    if (up != nullptr && can_split(layer, 1)) {
      divide_pair(std::array{up}, *layer, "only activations are between");
      up = nullptr;
    } else {
      up = can_split(layer, 0) ? layer : nullptr;
    }
  }
}

// Feed-forward blocks in modules of other classes, recognized only by names
// and shapes.
void PlanInference::divide_names(std::size_t i) {
  // Layers that can be divided have already been.
  if (is_one_of_types<
          nn::TransformerEncoderLayerImpl,
          nn::TransformerDecoderLayerImpl>(*entries_[i].module))
    return;
  for (const FeedForwardNames& names : kFeedForwards) {
    Entry* const down = child(i, names.down);
    if (!can_split(down, 1)) continue;
    const at::Tensor& weight = linear_of(*down)->weight;
    const std::int64_t width = weight.size(0), hidden = weight.size(1);
    std::vector<Entry*> ups;
    bool fits = hidden > width;
    for (const std::string_view name : names.up) {
      Entry* const up = child(i, name);
      if (up == nullptr) continue;
      fits = fits && can_split(up, 0) &&
          linear_of(*up)->weight.sizes() == at::IntArrayRef({hidden, width});
      ups.push_back(up);
    }
    if (ups.empty() || !fits || has_other_user(i, *down, ups, hidden)) continue;
    divide_pair(ups, *down, "names and shapes of a feed-forward block");
  }
}

// Whether anything else in module `i` may work on the hidden dimension.
bool PlanInference::has_other_user(
    std::size_t i,
    const Entry& down,
    std::span<Entry* const> ups,
    std::int64_t hidden) {
  const auto has_dimension = [&](const nn::Module& module, bool recurse) {
    for (const at::Tensor& parameter : module.parameters(recurse)) {
      const auto sizes = parameter.sizes();
      if (std::find(sizes.begin(), sizes.end(), hidden) != sizes.end())
        return true;
    }
    return false;
  };
  if (has_dimension(*entries_[i].module, false)) return true;
  for (const auto& item : entries_[i].module->named_children()) {
    const Entry* const other = child(i, item.key());
    const bool is_in_block =
        other == &down || std::find(ups.begin(), ups.end(), other) != ups.end();
    if (!is_in_block && has_dimension(*item.value(), true)) return true;
  }
  return false;
}

}  // namespace accelerate::detail
