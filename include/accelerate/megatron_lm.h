#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// Model parallelism as Megatron-LM and Accelerate's MegatronLMPlugin spell it.
/// This library does what concerns how ranks share a model and a step;
/// Megatron-LM itself is a Python engine. A field left unset takes the
/// launcher's value (`--megatron_lm_*`, `MEGATRON_LM_*`), else the default,
/// which is named.
struct MegatronLMOptions {
  // Degrees of parallelism.

  /// Number of tensor-parallel ranks. Unset: 1.
  std::optional<int> tp_degree = std::nullopt;
  /// Number of pipeline stages. Unset: 1.
  std::optional<int> pp_degree = std::nullopt;
  /// Number of ranks over which the sequence is sharded. Unset: 1 (Accelerate
  /// 1.15 takes 2).
  std::optional<int> context_parallel_size = std::nullopt;
  /// Number of ranks over which experts are distributed, and over which each is
  /// sharded. Unset: 1.
  std::optional<int> expert_model_parallel_size = std::nullopt;
  std::optional<int> expert_tensor_parallel_size = std::nullopt;

  // The step.

  /// Number of micro-batches of the pipeline. Unset: 1.
  std::optional<int> num_micro_batches = std::nullopt;
  /// Norm that gradients are clipped to; 0: no clipping. Unset: 1.
  std::optional<double> gradient_clipping = std::nullopt;
  /// Tensor-parallel ranks also shard the sequence between the matrices. Unset:
  /// false.
  std::optional<bool> sequence_parallelism = std::nullopt;

  // Activations.

  /// Recompute activations in the backward pass. Unset: false.
  std::optional<bool> recompute_activations = std::nullopt;
  /// "full" or "selective". Unset: "full".
  std::optional<std::string> recompute_granularity = std::nullopt;
  /// "uniform" or "block". Unset: "uniform".
  std::optional<std::string> recompute_method = std::nullopt;
  /// Number of layers that are recomputed together. Unset: 1.
  std::optional<int> recompute_num_layers = std::nullopt;

  // The optimizer, and its state in memory and in checkpoints.

  /// Shard optimizer state over the replicas of the model. Unset: false.
  std::optional<bool> use_distributed_optimizer = std::nullopt;
  /// Megatron's own FSDP. Unset: false.
  std::optional<bool> use_custom_fsdp = std::nullopt;
  /// Optimizer state in host memory, copied while computing. Unset: false.
  std::optional<bool> optimizer_cpu_offload = std::nullopt;
  std::optional<bool> overlap_cpu_optimizer_d2h_h2d = std::nullopt;
  /// Optimizer state in mixed precision. Unset: false.
  std::optional<bool> use_precision_aware_optimizer = std::nullopt;
  /// Omit optimizer state from checkpoints. Unset: false.
  std::optional<bool> no_load_optim = std::nullopt;
  std::optional<bool> no_save_optim = std::nullopt;

  // The loss.

  /// Omit ends of documents from the loss. Unset: false.
  std::optional<bool> eod_mask_loss = std::nullopt;
  /// Average the loss over tokens. Unset: true.
  std::optional<bool> calculate_per_token_loss = std::nullopt;

  // The model.

  /// Number of layers of the last pipeline stage. Unset: as many as in the
  /// others.
  std::optional<int> decoder_last_pipeline_num_layers = std::nullopt;
  /// Concerns the model that Megatron-LM builds. Unset: true.
  std::optional<bool> attention_backend = std::nullopt;
  std::optional<bool> attention_softmax_in_fp32 = std::nullopt;
  std::optional<bool> use_rotary_position_embeddings = std::nullopt;
  /// Unset: 0.
  std::optional<double> attention_dropout = std::nullopt;
  std::optional<double> hidden_dropout = std::nullopt;
};

}  // namespace accelerate
