#include "parallel/context/attention_layers.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/modules/activation.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/watched_tensor.h"
#include "gate/weight_product.h"
#include "parallel/context/sequence_tensors.h"
#include "parallel/formula.h"

namespace accelerate::detail {

namespace {

// By which watches are found: a model has those of the last Accelerator.
const char kAttentionOwner = 0;

// Keys or values of the whole sequence.
at::Tensor gather_keys(const at::Tensor& own, const DividedSequence& sequence) {
  return gather_positions(own, 0, sequence.group, sequence.shards);
}

}  // namespace

void AttentionLayers::watch(
    const std::string& name,
    const torch::nn::Module& module) {
  const auto& attention = *module.as<torch::nn::MultiheadAttentionImpl>();
  const std::int64_t width = attention.options.embed_dim();
  if (attention._qkv_same_embed_dim) {
    const at::Tensor& weight = attention.in_proj_weight;
    watch_as(weight, add(Role::joint_weight, name, weight.sizes()));
    // What follows it in the list: see project() and slice_weight().
    add(Role::projected, name, {3 * width});
    add(Role::key_value_weight, name, {width, width});
    add(Role::key_value_weight, name, {2 * width, width});
    return;
  }
  for (const at::Tensor& weight :
       {attention.k_proj_weight, attention.v_proj_weight})
    watch_as(weight, add(Role::key_value_weight, name, weight.sizes()));
}

std::size_t AttentionLayers::add(
    Role role,
    const std::string& layer,
    at::IntArrayRef shape) {
  watched_.push_back({role, layer, shape.vec()});
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
  if (current->document_ids) {
    throw ConfigError(format(
        "[parallel] document_ids were given, but \"{}\" is a "
        "torch::nn::MultiheadAttention, which has masks only; give it an "
        "attn_mask",
        watched.layer));
  }
  if (current->group.size() == 1) return std::nullopt;
  if (length != current->shards.local_length()) {
    if (watched.role == Role::key_value_weight) return std::nullopt;
    check_local_length(length, current->group, current->shards);
  }
  const std::lock_guard lock(mutex_);
  sequences_.insert_or_assign(length, *current);
  return *current;
}

// Projects keys and values, and gathers them; what has queries beside them is
// watched until it is divided.
bool AttentionLayers::project(GatedCall& call) {
  std::optional<std::size_t> unit;
  const std::optional<WeightProduct> product = weight_product_in(
      call, [&](const c10::IValue& value) -> const std::vector<std::int64_t>* {
        unit = unit_of(value);
        return unit && watched_[*unit].role != Role::projected
            ? &watched_[*unit].shape
            : nullptr;
      });
  if (!product) return false;
  const Watched& weight = watched_[*unit];
  call.run();
  c10::IValue& result = call.results().front();
  // Ranks that split the layer may have gathered the input's positions.
  const std::optional<DividedSequence> sequence =
      sequence_of(result.toTensor().size(0), weight);
  if (!sequence) return true;
  if (weight.role == Role::joint_weight) {
    watch_as(result.toTensor(), *unit + 1);
  } else {
    result = gather_keys(result.toTensor(), *sequence);
  }
  return true;
}

// Rows of the joint weight, which the module takes where queries are not the
// keys: what begins after those of queries projects keys, values, or both.
bool AttentionLayers::slice_weight(GatedCall& call) {
  if (call.operation().operator_name().name != "aten::slice") return false;
  const std::optional<std::size_t> unit = unit_of(call.arguments().front());
  if (!unit || watched_[*unit].role != Role::joint_weight) return false;
  const std::int64_t begin =
      call.arguments()[2].toOptional<std::int64_t>().value_or(0);
  call.run();
  if (begin == 0 || (divided_sequence() == nullptr && !is_in_backward()))
    return true;
  c10::IValue& result = call.results().front();
  // A view's watches would be those of the weight.
  at::Tensor rows = result.toTensor().clone();
  const std::int64_t width = rows.size(1);
  watch_as(rows, rows.size(0) == width ? *unit + 2 : *unit + 3);
  result = std::move(rows);
  return true;
}

// Divides what the joint weight made into queries of this rank, and keys and
// values of the sequence.
bool AttentionLayers::divide_projected(GatedCall& call) {
  const std::optional<std::size_t> unit = unit_of(call.arguments().front());
  if (!unit || watched_[*unit].role != Role::projected) return false;
  const Watched& projected = watched_[*unit];
  const at::Tensor own = call.arguments().front().toTensor();
  // Queries are a view of it, with a third of the last dimension.
  if (own.size(-1) != projected.shape.front()) return false;
  const std::string& name = call.operation().operator_name().name;
  call.run();
  if (name == "aten::add_") return true;
  if (name == "aten::add") {
    watch_as(call.results().front().toTensor(), *unit);
    return true;
  }
  if (name != "aten::chunk") {
    throw ConfigError(format(
        "[parallel] \"{}\" calls {} on its projections, which this "
        "LibTorch's torch::nn::MultiheadAttention was not known to do; use "
        "scaled_dot_product_attention, or set context to 1",
        projected.layer,
        name));
  }
  const std::optional<DividedSequence> sequence =
      sequence_of(own.size(0), projected);
  if (!sequence) return true;
  std::vector<at::Tensor> parts = call.results().front().toTensorVector();
  for (std::size_t i = 1; i < parts.size(); ++i)
    parts[i] = gather_keys(parts[i].contiguous(), *sequence);
  call.results().front() = c10::List<at::Tensor>(parts);
  return true;
}

void AttentionLayers::call(GatedCall& call) {
  if (is_in_formula()) return call.run();
  if (project(call) || slice_weight(call) || divide_projected(call)) return;
  call.run();
}

}  // namespace accelerate::detail
