#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// Model parallelism in Megatron-LM's words, those of Accelerate's
/// MegatronLMPlugin: what of them says how ranks share a model and a step is
/// done by this library; Megatron-LM itself is a Python engine. A field left
/// unset takes what the launcher said (`--megatron_lm_*`, `MEGATRON_LM_*`),
/// else the default, which is named.
struct MegatronLMOptions {
  /// Ranks that split each layer. Unset: 1.
  std::optional<int> tp_degree = std::nullopt;
  /// Pipeline stages. Unset: 1.
  std::optional<int> pp_degree = std::nullopt;
  /// Ranks that split the sequence. Unset: 1 (Accelerate 1.15 takes 2).
  std::optional<int> context_parallel_size = std::nullopt;
  /// Ranks that share experts out, and that split each. Unset: 1.
  std::optional<int> expert_model_parallel_size = std::nullopt;
  std::optional<int> expert_tensor_parallel_size = std::nullopt;
  /// Micro-batches of the pipeline. Unset: 1.
  std::optional<int> num_micro_batches = std::nullopt;
  /// Norm that gradients are clipped to; 0: not. Unset: 1.
  std::optional<double> gradient_clipping = std::nullopt;
  /// The ranks of a layer split sequences between its matrices. Unset: false.
  std::optional<bool> sequence_parallelism = std::nullopt;
  /// Compute activations again in the backward pass. Unset: false.
  std::optional<bool> recompute_activations = std::nullopt;
  /// "full" or "selective". Unset: "full".
  std::optional<std::string> recompute_granularity = std::nullopt;
  /// "uniform" or "block". Unset: "uniform".
  std::optional<std::string> recompute_method = std::nullopt;
  /// Layers that are computed again together. Unset: 1.
  std::optional<int> recompute_num_layers = std::nullopt;
  /// Split optimizer state over the copies of the model. Unset: false.
  std::optional<bool> use_distributed_optimizer = std::nullopt;
  /// Megatron's own FSDP. Unset: false.
  std::optional<bool> use_custom_fsdp = std::nullopt;
  /// Optimizer state in host memory, copied while computing. Unset: false.
  std::optional<bool> optimizer_cpu_offload = std::nullopt;
  std::optional<bool> overlap_cpu_optimizer_d2h_h2d = std::nullopt;
  /// Optimizer state of mixed precision. Unset: false.
  std::optional<bool> use_precision_aware_optimizer = std::nullopt;
  /// Leave optimizer state out of checkpoints. Unset: false.
  std::optional<bool> no_load_optim = std::nullopt;
  std::optional<bool> no_save_optim = std::nullopt;
  /// Leave ends of documents out of the loss. Unset: false.
  std::optional<bool> eod_mask_loss = std::nullopt;
  /// Average the loss over tokens. Unset: true.
  std::optional<bool> calculate_per_token_loss = std::nullopt;
  /// Layers of the last pipeline stage. Unset: as many as in the others.
  std::optional<int> decoder_last_pipeline_num_layers = std::nullopt;
  /// Of the model Megatron builds. Unset: true.
  std::optional<bool> attention_backend = std::nullopt;
  std::optional<bool> attention_softmax_in_fp32 = std::nullopt;
  std::optional<bool> use_rotary_position_embeddings = std::nullopt;
  /// Unset: 0.
  std::optional<double> attention_dropout = std::nullopt;
  std::optional<double> hidden_dropout = std::nullopt;
};

}  // namespace accelerate
