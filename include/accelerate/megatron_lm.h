#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate {

/// Model parallelism as Megatron-LM and Accelerate's MegatronLMPlugin spell it.
/// This library does what concerns how ranks share a model and a step;
/// Megatron-LM itself is a Python engine. A field left unset takes the
/// launcher's value (`--megatron_lm_*`, `MEGATRON_LM_*`), else the default,
/// which is named. Fields "without effect" concern what Megatron-LM builds or
/// does by itself; they are checked, and listed in one warning if they are given
/// or if the launcher changes them.
struct MegatronLMOptions {
  // Degrees of parallelism.

  /// Number of tensor-parallel ranks; models without a `parallelize_plan` get
  /// that of infer_parallelize_plan(). Unset: 1.
  std::optional<int> tp_degree = std::nullopt;
  /// Number of pipeline stages. Unset: 1.
  std::optional<int> pp_degree = std::nullopt;
  /// Number of ranks over which the sequence is sharded. Unset: 1 (Accelerate
  /// 1.15 takes 2).
  std::optional<int> context_parallel_size = std::nullopt;
  /// Number of ranks over which experts are divided (ParallelOptions::expert).
  /// Unset: 1.
  std::optional<int> expert_model_parallel_size = std::nullopt;
  /// Number of ranks over which each expert is split: 1, or tp_degree. Unset: 1.
  std::optional<int> expert_tensor_parallel_size = std::nullopt;

  // The step.

  /// Number of micro-batches of the pipeline; without effect: see
  /// gradient_accumulation_steps. Unset: 1.
  std::optional<int> num_micro_batches = std::nullopt;
  /// Norm that gradients are clipped to; 0: no clipping. Unset: 1.
  std::optional<double> gradient_clipping = std::nullopt;
  /// Tensor-parallel ranks also shard the sequence between the matrices;
  /// without effect. Unset: false.
  std::optional<bool> sequence_parallelism = std::nullopt;

  // Activations.

  /// Recompute activations in the backward pass. Unset: false.
  std::optional<bool> recompute_activations = std::nullopt;
  /// "full" or "selective"; without effect, as the next two: the layers of a
  /// Sequential or ModuleList are recomputed one by one. Unset: "full".
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
  /// This and the next three are without effect. Unset: false.
  std::optional<bool> overlap_cpu_optimizer_d2h_h2d = std::nullopt;
  /// Optimizer state in mixed precision. Unset: false.
  std::optional<bool> use_precision_aware_optimizer = std::nullopt;
  /// Omit optimizer state from checkpoints. Unset: false.
  std::optional<bool> no_load_optim = std::nullopt;
  std::optional<bool> no_save_optim = std::nullopt;

  // The loss; without effect.

  /// Omit ends of documents from the loss. Unset: false.
  std::optional<bool> eod_mask_loss = std::nullopt;
  /// Average the loss over tokens. Unset: true.
  std::optional<bool> calculate_per_token_loss = std::nullopt;

  // The model; without effect.

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
  /// Stage at which an encoder ends and a decoder begins, and number of layers
  /// of each virtual stage of an interleaved schedule.
  std::optional<int> pipeline_model_parallel_split_rank = std::nullopt;
  std::optional<int> num_layers_per_virtual_pipeline_stage = std::nullopt;
  /// Lengths of sequences, of an encoder's and of a decoder's.
  std::optional<int> seq_length = std::nullopt;
  std::optional<int> encoder_seq_length = std::nullopt;
  std::optional<int> decoder_seq_length = std::nullopt;
  /// Return logits from a forward without labels. Unset: false.
  std::optional<bool> return_logits = std::nullopt;

  // Megatron-LM's own loop and schedules; without effect. The program has the
  // loop, and schedulers.h the schedules.

  /// The micro-batch is the smallest batch size of the prepared loaders; false:
  /// the largest. Unset: true.
  std::optional<bool> is_train_batch_min = std::nullopt;
  /// Length of the training, in steps or in samples.
  std::optional<std::int64_t> train_iters = std::nullopt;
  std::optional<std::int64_t> train_samples = std::nullopt;
  /// "constant", "linear" or "cosine". Unset: "constant".
  std::optional<std::string> weight_decay_incr_style = std::nullopt;
  std::optional<double> start_weight_decay = std::nullopt;
  std::optional<double> end_weight_decay = std::nullopt;
  /// "constant", "linear", "cosine", "inverse-square-root" or "WSD". Unset:
  /// "linear".
  std::optional<std::string> lr_decay_style = std::nullopt;
  /// Steps, or samples, over which the learning rate decays and warms up, and
  /// the warm-up as a fraction of the decay.
  std::optional<std::int64_t> lr_decay_iters = std::nullopt;
  std::optional<std::int64_t> lr_decay_samples = std::nullopt;
  std::optional<std::int64_t> lr_warmup_iters = std::nullopt;
  std::optional<std::int64_t> lr_warmup_samples = std::nullopt;
  std::optional<double> lr_warmup_fraction = std::nullopt;
  /// Unset: 0.
  std::optional<double> min_lr = std::nullopt;
  /// Factor of the learning rate of parameters that a condition chooses. Unset:
  /// 1.
  std::optional<double> lr_mult = std::nullopt;

  // Data, evaluation and logs of that loop; without effect.

  /// Samples consumed so far in training, validation and test; zeros are added
  /// to a shorter list.
  std::optional<std::vector<std::int64_t>> consumed_samples = std::nullopt;
  /// Data come from Megatron-LM's own datasets. Unset: false.
  std::optional<bool> megatron_dataset_flag = std::nullopt;
  /// Number of steps of an evaluation, and of the training between two. Unset:
  /// 100 and 1000.
  std::optional<std::int64_t> eval_iters = std::nullopt;
  std::optional<std::int64_t> eval_interval = std::nullopt;
  std::optional<std::string> tensorboard_dir = std::nullopt;
  /// Unset: false.
  std::optional<bool> set_all_logging_options = std::nullopt;

  /// Further arguments of Megatron-LM, as a JSON object; without effect.
  std::optional<std::string> other_megatron_args = std::nullopt;
};

}  // namespace accelerate
