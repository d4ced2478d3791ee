#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "gate/watched_tensor.h"
#include "parallel/tensor/split_keeper.h"
#include "parallel/tensor/split_planner.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kSeparateProjections =
    "is a MultiheadAttention with keys or values of another width than its "
    "queries (kdim, vdim), whose projections are separate and stay whole; give "
    "it ColwiseParallel with input_layouts Replicate{} and output_layouts "
    "Shard{-1}";

}  // namespace

// Takes this rank's rows of the projections that MultiheadAttention slices out
// of their weight if queries are not the keys. Its code counts the rows of all
// heads.
bool SplitKeeper::take_projections(GatedCall& call) {
  if (call.operation().operator_name().name != "aten::slice" || !is_in_model())
    return false;
  const auto arguments = call.arguments();
  const WatchedSplit* const weight = find(arguments.front());
  if (weight == nullptr || !weight->split.product ||
      !weight->split.product->is_attention ||
      arguments.front().toTensor().sizes() !=
          at::IntArrayRef(weight->local_shape))
    return false;
  const std::int64_t all = weight->global_shape[0] / 3;
  const std::int64_t own = weight->local_shape[0] / 3;
  const std::int64_t first =
      arguments[2].toOptional<std::int64_t>().value_or(0) / all;
  const std::int64_t last = std::min<std::int64_t>(
      3, arguments[3].toOptional<std::int64_t>().value_or(3 * all) / all);
  if (own == 0 || last - first < 1 || last - first > 2) return false;
  const auto unit = static_cast<std::size_t>(weight - splits_.data());
  arguments[2] = first * own;
  arguments[3] = last * own;
  call.run();
  // A view would share the weight's watches.
  at::Tensor rows = call.results().front().toTensor().clone();
  watch_tensor(
      rows,
      {shared_from_this(),
       unit + static_cast<std::size_t>(last - first),
       this});
  call.results().front() = std::move(rows);
  return true;
}

void SplitPlanner::split_attention(const ColwiseParallel& style) {
  if (style.num_heads != 0 || !style.projections.empty()) {
    return complain(
        "is a MultiheadAttention, which knows its heads; leave out num_heads "
        "and projections");
  }
  const SplitProduct product{false, style.input_layouts, style.output_layouts};
  if (is_replicated(product.output)) {
    if (!layer_.module->as<torch::nn::MultiheadAttentionImpl>()
             ->_qkv_same_embed_dim)
      return complain(kSeparateProjections);
    SplitParameter* const weight = take("in_proj_weight", 0);
    if (weight != nullptr) assign(*weight, weight->product, product);
    return;
  }
  if (!layer_.is_features(product.output) ||
      (!is_replicated(product.input) &&
       product.input != TensorPlacement(accelerate::Shard{0}))) {
    return complain(
        "is a MultiheadAttention, which is split by heads; give output_layouts "
        "Shard{-1} (as it is by default), and input_layouts Replicate{}, or "
        "Shard{0} for slices of the sequence");
  }
  split_heads(product);
}

// Each rank has the query, key and value rows of its heads; separate
// projections stay full, since the module's code compares their sizes with
// those of its input.
void SplitPlanner::split_heads(SplitProduct product) {
  const auto& attention =
      *layer_.module->as<torch::nn::MultiheadAttentionImpl>();
  const std::int64_t width = attention.options.embed_dim();
  const std::int64_t heads = attention.options.num_heads();
  const std::vector<std::int64_t> projections(3, width);
  if (!attention._qkv_same_embed_dim && !is_replicated(product.input))
    return complain(kSeparateProjections);
  require_heads(heads, projections, 3 * width);
  const auto split_rows = [&](const char* key) {
    SplitParameter* const split = take(key, 0);
    if (split == nullptr) return split;
    split->num_heads = heads;
    split->projections = projections;
    return split;
  };
  if (SplitParameter* const weight = split_rows("in_proj_weight")) {
    product.is_attention = true;
    assign(*weight, weight->product, product);
  }
  split_rows("in_proj_bias");
  // Ranks use only the rows of their heads (AttentionLayers).
  for (const char* const key :
       {"q_proj_weight", "k_proj_weight", "v_proj_weight"}) {
    if (SplitParameter* const weight = entry(key)) weight->num_heads = heads;
  }
  for (const char* const key : {"bias_k", "bias_v"}) share(key);
}

// Returns the number of heads of a MultiheadAttention split by heads whose last
// layer the module is; 0 for other layers.
std::int64_t SplitPlanner::heads_of_attention() const {
  for (const StyledModule& each : styled_) {
    const auto* const attention =
        each.module->as<torch::nn::MultiheadAttentionImpl>();
    const auto* const style = std::get_if<ColwiseParallel>(&each.style);
    if (attention != nullptr && style != nullptr &&
        attention->out_proj.get() == layer_.module &&
        !is_replicated(style->output_layouts))
      return attention->options.num_heads();
  }
  return 0;
}

}  // namespace accelerate::detail
