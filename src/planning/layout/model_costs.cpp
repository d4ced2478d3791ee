#include "planning/layout/model_costs.h"

#include <algorithm>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace detail {

namespace {

double number(std::int64_t value) { return static_cast<double>(value); }

// Number of parameters of an MLP with `inner` inner features.
double mlp_parameters(const TransformerShape& shape, std::int64_t inner) {
  return (shape.is_gated ? 3 : 2) * number(shape.hidden_size) * number(inner);
}

LayerCosts layer_costs(const TransformerShape& shape, bool has_experts) {
  const double hidden = number(shape.hidden_size);
  const double heads = number(shape.num_heads * shape.head_size);
  const double kv = number(shape.num_kv_heads * shape.head_size);
  const double attention = hidden * (2 * heads + 2 * kv);
  LayerCosts layer;
  layer.has_experts = has_experts;
  layer.hidden = hidden;
  layer.keys_and_values = 2 * kv;
  layer.attention_flops = 2 * attention;
  // Queries times keys and weights times values; half are masked out.
  layer.attention_flops_per_position = 2 * heads;
  double inner = number(shape.intermediate_size);
  layer.dense_parameters = attention + 4 * hidden;
  if (has_experts) {
    const double expert = mlp_parameters(shape, shape.expert_intermediate_size);
    layer.expert_parameters = number(shape.num_experts) * expert;
    layer.expert_flops = 2 * number(shape.top_k) * expert;
    layer.dense_parameters += number(shape.num_experts) * hidden;
    inner = number(shape.top_k * shape.expert_intermediate_size);
    if (shape.shared_intermediate_size > 0) {
      const double shared =
          mlp_parameters(shape, shape.shared_intermediate_size);
      layer.dense_parameters += shared;
      layer.mlp_flops = 2 * shared;
      inner += number(shape.shared_intermediate_size);
    }
  } else {
    const double mlp = mlp_parameters(shape, shape.intermediate_size);
    layer.dense_parameters += mlp;
    layer.mlp_flops = 2 * mlp;
  }
  const double gate = shape.is_gated ? 1 : 0;
  layer.matrices = has_experts ? 5 : 6 + gate;
  if (has_experts && shape.shared_intermediate_size > 0)
    layer.matrices += 2 + gate;
  // Two norms and the matrices, with a bias each.
  layer.tensors = 2 * (2 + layer.matrices) + (has_experts ? 2 + gate : 0);
  // Elements that are kept (Korthikanti et al., 2022, without dropout, and with
  // attention that recomputes its weights): inputs of the two norms and of the
  // projections, the residual; queries, keys, values and the result of
  // attention; outputs of the MLP's matrices and its activation. Ranks along
  // `tensor` split each expert, and each has all rows that are sent.
  const double replicated =
      4 * hidden + (has_experts ? 2 * number(shape.top_k) * hidden : 0);
  const double matrices = shape.is_gated ? 3 : 2;
  const double divided = 2 * heads + 2 * kv + (matrices + 1) * inner;
  layer.kept = replicated + divided;
  layer.kept_divided = divided / layer.kept;
  // Each element is written once and read once or twice.
  layer.touched = 2.5 * layer.kept + 4 * hidden;
  return layer;
}

}  // namespace

TransformerShape complete_shape(TransformerShape shape) {
  if (shape.num_layers < 1 || shape.hidden_size < 1 || shape.num_heads < 1 ||
      shape.vocabulary < 1) {
    throw ConfigError(format(
        "[planning] num_layers, hidden_size, num_heads and vocabulary must be "
        "at least 1, but are {}, {}, {} and {}",
        shape.num_layers,
        shape.hidden_size,
        shape.num_heads,
        shape.vocabulary));
  }
  if (shape.num_kv_heads == 0) shape.num_kv_heads = shape.num_heads;
  if (shape.head_size == 0) {
    shape.head_size =
        std::max<std::int64_t>(1, shape.hidden_size / shape.num_heads);
  }
  if (shape.intermediate_size == 0)
    shape.intermediate_size = 4 * shape.hidden_size;
  if (shape.num_experts > 0) {
    if (shape.top_k == 0) shape.top_k = 1;
    if (shape.expert_intermediate_size == 0)
      shape.expert_intermediate_size = shape.intermediate_size;
  }
  const bool is_wrong = shape.num_kv_heads < 1 || shape.head_size < 1 ||
      shape.intermediate_size < 1 || shape.num_experts < 0 || shape.top_k < 0 ||
      shape.top_k > std::max<std::int64_t>(shape.num_experts, 0) ||
      shape.num_dense_layers < 0 || shape.shared_intermediate_size < 0;
  if (is_wrong && shape.num_experts + shape.top_k > 0) {
    throw ConfigError(format(
        "[planning] a token must use from 1 to all experts, but the "
        "transformer has {} experts, {} per token, of size {}",
        shape.num_experts,
        shape.top_k,
        shape.expert_intermediate_size));
  }
  return shape;
}

ModelCosts model_costs(const TransformerShape& given) {
  ModelCosts costs;
  costs.shape = complete_shape(given);
  const TransformerShape& shape = costs.shape;
  costs.dense_layer = layer_costs(shape, false);
  costs.expert_layer = layer_costs(shape, shape.num_experts > 0);
  costs.embedding_parameters =
      number(shape.vocabulary) * number(shape.hidden_size);
  costs.head_parameters = shape.is_tied ? 0 : costs.embedding_parameters;
  costs.head_flops = 2 * costs.embedding_parameters;
  return costs;
}

}  // namespace detail

std::int64_t TransformerShape::num_parameters() const {
  const detail::ModelCosts costs = detail::model_costs(*this);
  double sum = costs.embedding_parameters + costs.head_parameters;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const detail::LayerCosts& layer = costs.layer(i);
    sum += layer.dense_parameters + layer.expert_parameters;
  }
  return static_cast<std::int64_t>(sum);
}

std::int64_t TransformerShape::num_active_parameters() const {
  const detail::ModelCosts costs = detail::model_costs(*this);
  double sum = costs.embedding_parameters + costs.head_parameters;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const detail::LayerCosts& layer = costs.layer(i);
    sum += layer.dense_parameters;
    if (layer.has_experts) {
      sum += layer.expert_parameters * static_cast<double>(costs.shape.top_k) /
          static_cast<double>(costs.shape.num_experts);
    }
  }
  return static_cast<std::int64_t>(sum);
}

}  // namespace accelerate

namespace accelerate::detail {

std::int64_t samples_of_step(const LayoutPlanOptions& options) {
  return std::max<std::int64_t>(
      1, options.batch_tokens / options.sequence_length);
}

double tokens_of_step(const LayoutPlanOptions& options) {
  return static_cast<double>(samples_of_step(options)) *
      static_cast<double>(options.sequence_length);
}

std::uint64_t usable_bytes(const LayoutPlanOptions& options) {
  return static_cast<std::uint64_t>(
      static_cast<double>(options.cluster->memory_bytes) *
      options.usable_memory);
}

double product_speed(const LayoutPlanOptions& options) {
  const ClusterSpeeds& cluster = *options.cluster;
  if (options.precision != FloatType::fp32) return cluster.flops;
  return cluster.fp32_flops > 0 ? cluster.fp32_flops : cluster.flops / 2;
}

}  // namespace accelerate::detail
