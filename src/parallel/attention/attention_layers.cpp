#include "parallel/attention/attention_layers.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/modules/activation.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/attention/projection.h"
#include "parallel/context/sequence_tensors.h"
#include "parallel/formula.h"
#include "parallel/random_region.h"

namespace accelerate::detail {

namespace {

// Identifies watches: a model has those of the last Accelerator.
const char kAttentionOwner = 0;

}  // namespace

void AttentionLayers::watch(
    const std::string& name,
    const torch::nn::Module& module,
    const std::optional<SplitHeads>& split,
    bool out_takes_heads) {
  const auto& attention = *module.as<torch::nn::MultiheadAttentionImpl>();
  const std::int64_t heads = attention.options.num_heads();
  const auto layer = std::make_shared<const AttentionLayer>(AttentionLayer{
      name,
      heads,
      attention.options.embed_dim() / heads,
      split,
      !attention._qkv_same_embed_dim,
      out_takes_heads});
  if (attention._qkv_same_embed_dim) {
    watch_joint(module, layer);
  } else {
    watch_separate(module, layer);
  }
}

void AttentionLayers::watch_joint(
    const torch::nn::Module& module,
    const std::shared_ptr<const AttentionLayer>& layer) {
  const auto& attention = *module.as<torch::nn::MultiheadAttentionImpl>();
  const at::Tensor& weight = attention.in_proj_weight;
  if (find_watch(weight, &kAttentionOwner) != nullptr && !layer->split) return;
  const std::int64_t width = layer->width(), own = layer->own_width();
  watch_as(
      weight, add({Role::projection, layer, weight.sizes().vec(), 3, true}));
  // The units that follow it: see slice().
  add({Role::projection, layer, {own, width}, 1, true});
  add({Role::projection, layer, {own, width}, 1, false});
  add({Role::projection, layer, {2 * own, width}, 2, false});
  const at::Tensor& bias = attention.in_proj_bias;
  if (layer->split && bias.defined())
    watch_as(bias, add({Role::bias, layer, bias.sizes().vec()}));
}

void AttentionLayers::watch_separate(
    const torch::nn::Module& module,
    const std::shared_ptr<const AttentionLayer>& layer) {
  const auto& attention = *module.as<torch::nn::MultiheadAttentionImpl>();
  const auto watch_whole = [&](const at::Tensor& weight, bool is_query) {
    if (find_watch(weight, &kAttentionOwner) != nullptr && !layer->split)
      return;
    watch_as(
        weight,
        add({Role::projection, layer, weight.sizes().vec(), 1, is_query}));
  };
  watch_whole(attention.q_proj_weight, true);
  watch_whole(attention.k_proj_weight, false);
  watch_whole(attention.v_proj_weight, false);
  const at::Tensor& bias = attention.in_proj_bias;
  if (layer->split && bias.defined())
    watch_as(bias, add({Role::bias, layer, bias.sizes().vec()}));
}

std::size_t AttentionLayers::add(Watched watched) {
  watched_.push_back(std::move(watched));
  return watched_.size() - 1;
}

void AttentionLayers::watch_as(const at::Tensor& tensor, std::size_t unit) {
  unwatch_tensor(tensor, &kAttentionOwner);
  watch_tensor_first(tensor, {shared_from_this(), unit, &kAttentionOwner});
}

std::optional<std::size_t> AttentionLayers::unit_of(
    const c10::IValue& value) const {
  const TensorWatch* const watch = find_watch(value, &kAttentionOwner);
  if (watch == nullptr || watch->keeper.get() != this) return std::nullopt;
  return watch->unit;
}

std::optional<DividedSequence> AttentionLayers::sequence_of(
    std::int64_t length,
    const Watched& watched) {
  const DividedSequence* const current = divided_sequence();
  if (current == nullptr) {
    const std::lock_guard lock(mutex_);
    const auto found = sequences_.find(length);
    if (!is_in_backward() || found == sequences_.end()) return std::nullopt;
    return found->second;
  }
  if (current->group.size() == 1 && !current->document_ids) return std::nullopt;
  if (length != current->shards.local_length()) {
    if (!watched.has_queries) return std::nullopt;
    check_local_length(length, current->group, current->shards);
  }
  const std::lock_guard lock(mutex_);
  sequences_.insert_or_assign(length, *current);
  return *current;
}

// Whether keys may turn out to belong to a divided sequence.
bool AttentionLayers::may_be_divided() {
  if (const DividedSequence* const current = divided_sequence())
    return current->group.size() > 1 || current->document_ids;
  const std::lock_guard lock(mutex_);
  return is_in_backward() && !sequences_.empty();
}

// Takes the rows of this rank's heads from a weight that every rank has. Each
// rank has a summand of the gradients of weight and input.
void AttentionLayers::take_own_rows(
    GatedCall& call,
    const WeightProduct& product,
    const AttentionLayer& layer) const {
  const SplitHeads& split = *layer.split;
  c10::IValue& weight = call.arguments()[product.weight_at];
  const bool is_transposed =
      call.operation().operator_name().name != "aten::linear";
  weight = copy_to_region(weight.toTensor(), split.group)
               .narrow(
                   is_transposed ? 1 : 0,
                   split.first() * layer.head_size,
                   split.count() * layer.head_size);
  c10::IValue& input = call.arguments()[product.input_at];
  input = copy_to_region(input.toTensor(), split.group);
}

// Replaces what a weight projects to with a placeholder, if ranks divide its
// heads or positions.
bool AttentionLayers::project(GatedCall& call) {
  std::optional<std::size_t> unit;
  const std::optional<WeightProduct> product = weight_product_in(
      call, [&](const c10::IValue& value) -> const std::vector<std::int64_t>* {
        unit = unit_of(value);
        return unit && watched_[*unit].role == Role::projection
            ? &watched_[*unit].shape
            : nullptr;
      });
  if (!product) return false;
  const Watched& weight = watched_[*unit];
  const AttentionLayer& layer = *weight.layer;
  const at::Tensor input = call.arguments()[product->input_at].toTensor();
  const bool is_split = layer.split && !is_full_;
  if (is_split && layer.is_separate) {
    take_own_rows(call, *product, layer);
    // The keeper of a split weight does this itself. Recomputed operators get
    // the numbers they had.
    if (!is_in_backward()) {
      enter_random_region(
          layer.split->region_owner,
          random_stream_of(Axis::tensor, layer.split->group.rank()));
    }
  }
  call.run();
  c10::IValue& result = call.results().front();
  ProjectedPart part{weight.layer, result.toTensor(), weight.num_parts};
  // The module's input is positions x batch x elements.
  if (part.own.dim() != 3) return true;
  part.is_split =
      is_split && part.own.size(-1) == weight.num_parts * layer.own_width();
  part.query_rows = input.size(0);
  // Ranks that split the layer may have gathered the input's positions.
  part.key_rows = part.own.size(0);
  const bool has_keys = weight.num_parts > 1 || !weight.has_queries;
  if (has_keys) part.sequence = sequence_of(part.key_rows, weight);
  if (part.sequence) part.key_rows = part.sequence->shards.length();
  if (!part.is_split && !part.sequence && (has_keys || !may_be_divided()))
    return true;
  result = Projection::placeholder(std::move(part), !has_keys);
  return true;
}

// Handles slices of the joint weight, which the module takes where queries are
// not the keys: the rows of queries, keys, values, or the last two.
bool AttentionLayers::slice(GatedCall& call) {
  if (call.operation().operator_name().name != "aten::slice") return false;
  const std::optional<std::size_t> unit = unit_of(call.arguments().front());
  if (!unit) return false;
  const Watched& watched = watched_[*unit];
  const bool is_known = call.arguments().front().toTensor().sizes() ==
          at::IntArrayRef(watched.shape) &&
      (watched.role == Role::bias || watched.num_parts == 3);
  if (!is_known) return false;
  if (watched.role == Role::bias) {
    slice_bias(call, watched);
    return true;
  }
  const std::int64_t begin =
      call.arguments()[2].toOptional<std::int64_t>().value_or(0);
  call.run();
  c10::IValue& result = call.results().front();
  at::Tensor rows = result.toTensor();
  const std::int64_t own = watched.layer->own_width();
  if (watched.layer->split) {
    // Views come from code outside a forward.
    if (rows.is_view() || find_watch(rows, &kAttentionOwner) != nullptr)
      return true;
  } else {
    if (!may_be_divided()) return true;
    // A view would share the weight's watches.
    rows = rows.clone();
  }
  std::size_t place = *unit + 3;
  if (rows.size(0) == own) place = begin == 0 ? *unit + 1 : *unit + 2;
  watch_as(rows, place);
  result = std::move(rows);
  return true;
}

// The module's code counts the columns of all heads; this rank has only its
// own.
void AttentionLayers::slice_bias(GatedCall& call, const Watched& bias) const {
  const AttentionLayer& layer = *bias.layer;
  if (bias.shape.front() == 3 * layer.own_width()) {
    for (const std::size_t i : {2, 3}) {
      c10::IValue& place = call.arguments()[i];
      const auto column = place.toOptional<std::int64_t>();
      if (!column || *column % layer.width() != 0) continue;
      place = *column / layer.width() * layer.own_width();
    }
  }
  call.run();
}

void AttentionLayers::call(GatedCall& call) {
  if (is_in_formula()) return call.run();
  if (project(call) || slice(call)) return;
  call.run();
}

}  // namespace accelerate::detail
