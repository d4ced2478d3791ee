#pragma once

#include <cstdint>

#include <accelerate/planning.h>

namespace accelerate::detail {

/// Fills in the sizes of `shape` that default to others. Throws ConfigError for
/// impossible sizes.
TransformerShape complete_shape(TransformerShape shape);

/// Sizes and work of one undivided layer: numbers are for all ranks together.
struct LayerCosts {
  /// Parameters that every token uses, and those of all experts.
  double dense_parameters = 0;
  double expert_parameters = 0;
  /// Number of parameter tensors, biases included, and how many of them are
  /// matrices; all experts together count as one.
  double tensors = 0;
  double matrices = 0;
  /// Operations of a forward, per token: the projections of attention, the MLP
  /// or shared expert, the experts that a token is sent to, and attention
  /// itself, which is also per position of the sequence.
  double attention_flops = 0;
  double mlp_flops = 0;
  double expert_flops = 0;
  double attention_flops_per_position = 0;
  /// Elements per token in a layer's output, in keys and values, and in tensors
  /// that operators save for backward.
  double hidden = 0;
  double keys_and_values = 0;
  double kept = 0;
  /// The share of `kept` that ranks along `tensor` divide.
  double kept_divided = 0;
  /// Elements per token that operators other than products read and write.
  double touched = 0;
  bool has_experts = false;
};

struct ModelCosts {
  TransformerShape shape;
  LayerCosts dense_layer;
  LayerCosts expert_layer;
  /// Parameters of the embedding and of the output layer; 0 if the output layer
  /// is tied.
  double embedding_parameters = 0;
  double head_parameters = 0;
  /// Operations of the output layer per token.
  double head_flops = 0;

  [[nodiscard]] const LayerCosts& layer(std::int64_t number) const {
    const bool is_dense =
        shape.num_experts == 0 || number < shape.num_dense_layers;
    return is_dense ? dense_layer : expert_layer;
  }
};

ModelCosts model_costs(const TransformerShape& shape);

// Values derived from the options of a plan. The cluster must be set.

/// Samples per step over all ranks, rounded down; at least one.
std::int64_t samples_of_step(const LayoutPlanOptions& options);

/// Tokens in those samples.
double tokens_of_step(const LayoutPlanOptions& options);

/// Bytes of each rank's memory that a layout may use.
std::uint64_t usable_bytes(const LayoutPlanOptions& options);

/// Operations per second of matrix products in the precision of the plan.
double product_speed(const LayoutPlanOptions& options);

}  // namespace accelerate::detail
