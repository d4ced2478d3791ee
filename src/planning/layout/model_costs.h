#pragma once

#include <cstdint>

#include <accelerate/planning.h>

namespace accelerate::detail {

/// `shape` with the sizes that it leaves to others filled in. Throws ConfigError
/// for sizes that no model has.
TransformerShape complete_shape(TransformerShape shape);

/// What one layer has and computes, whole: numbers are for all ranks together.
struct LayerCosts {
  /// Parameters that every token uses, and those of all experts.
  double dense_parameters = 0;
  double expert_parameters = 0;
  /// Tensors of parameters, with biases, and those of them that are matrices; of
  /// experts, all together are one.
  double tensors = 0;
  double matrices = 0;
  /// Operations of a forward, per token: of the matrices of attention and of the
  /// MLP or shared expert, of the experts that a token is sent to, and of
  /// attention itself, per token and position of the sequence.
  double attention_flops = 0;
  double mlp_flops = 0;
  double expert_flops = 0;
  double attention_flops_per_position = 0;
  /// Elements per token that layers hand on, that keys and values have, and that
  /// operators keep for backward.
  double hidden = 0;
  double keys_and_values = 0;
  double kept = 0;
  /// The share of `kept` in what ranks along `tensor` divide.
  double kept_divided = 0;
  /// Elements per token that operators besides products read and write.
  double touched = 0;
  bool has_experts = false;
};

struct ModelCosts {
  TransformerShape shape;
  LayerCosts dense_layer;
  LayerCosts expert_layer;
  /// Those of the embedding, and of the output layer; 0 for one that is tied.
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

}  // namespace accelerate::detail
