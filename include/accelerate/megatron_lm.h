#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate {

/// Model parallelism as Megatron-LM and Accelerate's MegatronLMPlugin spell it.
/// This library implements how ranks share a model and a step; Megatron-LM
/// itself is a Python engine. A field left unset takes the launcher's value
/// (`--megatron_lm_*`, `MEGATRON_LM_*`), else the default named below. There
/// are no fields for what Megatron-LM builds or does by itself; one warning
/// lists such options if the launcher changes them. The schedule that these
/// options describe is made by scheduler_from_megatron_lm()
/// (megatron_lm_training.h).
struct MegatronLMOptions {
  // Degrees of parallelism.

  /// Number of tensor-parallel ranks; models without a `parallelize_plan` get
  /// the one of infer_parallelize_plan(). Unset: 1.
  std::optional<int> tp_degree = std::nullopt;
  /// Number of pipeline stages. Unset: 1.
  std::optional<int> pp_degree = std::nullopt;
  /// Number of ranks over which the sequence is sharded. Unset: 1 (Accelerate
  /// 1.15 takes 2).
  std::optional<int> context_parallel_size = std::nullopt;
  /// Number of ranks over which experts are divided (ParallelOptions::expert).
  /// Unset: 1.
  std::optional<int> expert_model_parallel_size = std::nullopt;
  /// Number of ranks that each expert is split over: 1, or tp_degree. Unset: 1.
  std::optional<int> expert_tensor_parallel_size = std::nullopt;

  // The step.

  /// Number of micro-batches of a Pipeline whose options give none. Without
  /// effect if pp_degree is 1: see gradient_accumulation_steps. Unset: as
  /// PipelineOptions say.
  std::optional<int> num_micro_batches = std::nullopt;
  /// Norm that gradients are clipped to; 0: no clipping. Unset: 1.
  std::optional<double> gradient_clipping = std::nullopt;
  /// Tensor-parallel ranks also shard the sequence between the matrices: where
  /// the inferred plan has only norms, dropout and activations between a
  /// RowwiseParallel and a ColwiseParallel layer of a Sequential, these work on
  /// slices. Without effect if tp_degree is 1, or with a parallelize_plan,
  /// which names SequenceParallel layers itself. Unset: false.
  std::optional<bool> sequence_parallelism = std::nullopt;

  // Activations.

  /// Recompute activations in the backward pass, if they do not fit into
  /// memory. Unset: false.
  std::optional<bool> recompute_activations = std::nullopt;
  /// "full": the layers of the outermost Sequentials and ModuleLists are
  /// recomputed; "selective": only attention modules, those with "Attention" or
  /// "attn" in their class or name. This and the next two have no effect unless
  /// recompute_activations is true. Unset: "full".
  std::optional<std::string> recompute_granularity = std::nullopt;
  /// "uniform": the layers of "full" are recomputed in groups of
  /// recompute_num_layers, so that only the input of each group's first is
  /// kept. "block": only the first recompute_num_layers of each rank are
  /// recomputed. Unset: "uniform".
  std::optional<std::string> recompute_method = std::nullopt;
  /// See recompute_method; 0 with "block" recomputes nothing. Larger groups of
  /// "uniform" keep fewer inputs, but recompute more at a time. Unset: 1.
  std::optional<int> recompute_num_layers = std::nullopt;

  // The optimizer, and its state in memory and in checkpoints.

  /// Shard optimizer state over the replicas of the model. Unset: false.
  std::optional<bool> use_distributed_optimizer = std::nullopt;
  /// Megatron's own FSDP: shard parameters and gradients as well, and gather
  /// parameters for each use. Unset: false.
  std::optional<bool> use_custom_fsdp = std::nullopt;
  /// Keep shards and optimizer state in host memory, and step there. Needs
  /// use_distributed_optimizer or use_custom_fsdp. Unset: false.
  std::optional<bool> optimizer_cpu_offload = std::nullopt;
  /// The optimizer steps on fp32 copies of parameters in bf16 and fp16, with
  /// its state in fp32, as Megatron-LM's default dtypes say: see
  /// AcceleratorOptions::master_weights, which this sets. Unset: false.
  std::optional<bool> use_precision_aware_optimizer = std::nullopt;
  /// load_state() leaves optimizers and schedules as they are; master weights
  /// start from those of the checkpoint, or else from its weights. Does not
  /// apply to the in-memory states of an elastic run. Unset: false.
  std::optional<bool> no_load_optim = std::nullopt;
  /// save_state() leaves out optimizers, master weights and schedules, which
  /// more than halves a checkpoint with Adam. Loading one needs no_load_optim
  /// or LoadStateOptions::strict = false. Unset: false.
  std::optional<bool> no_save_optim = std::nullopt;

  // The loss.

  /// Average over all tokens of a window and of all ranks: each micro-step is
  /// weighted by the BackwardOptions::num_items of its backward(). False:
  /// micro-steps and ranks have equal weights, whatever num_items says. Unset:
  /// true.
  std::optional<bool> calculate_per_token_loss = std::nullopt;

  // The stages of a pipeline.

  /// Number of layers, of the class that most layers have, on the last rank of
  /// a Pipeline whose options give neither split_points nor costs; the other
  /// ranks share the rest equally. Without effect if pp_degree is 1. Unset: as
  /// PipelineOptions say.
  std::optional<int> decoder_last_pipeline_num_layers = std::nullopt;
  /// Number of layers of each stage of a Pipeline whose options give no
  /// num_chunks: a rank then has several stages, and "1F1B" becomes
  /// "Interleaved1F1B". Layers of the class that most layers have are counted.
  /// Without effect if pp_degree is 1. Unset: one stage per rank.
  std::optional<int> num_layers_per_virtual_pipeline_stage = std::nullopt;

  // The schedule of scheduler_from_megatron_lm().

  /// Length of the training in optimizer steps. Unset: that of
  /// MegatronLMDummyScheduler.
  std::optional<std::int64_t> train_iters = std::nullopt;
  /// The length in samples; only one of the two. The schedule then counts
  /// samples, and needs MegatronLMDummyScheduler::global_batch_size.
  std::optional<std::int64_t> train_samples = std::nullopt;
  /// How weight decay grows over the training: "constant" (it stays the
  /// optimizer's), "linear" or "cosine". Unset: "constant".
  std::optional<std::string> weight_decay_incr_style = std::nullopt;
  /// Weight decay at the beginning; given if, and only if, it grows.
  std::optional<double> start_weight_decay = std::nullopt;
  /// Weight decay at the end of the training, not below the start.
  std::optional<double> end_weight_decay = std::nullopt;
  /// How the learning rate falls after its warm-up: "constant" (not at all),
  /// "linear", "cosine", "inverse-square-root" or "WSD". Unset: "linear".
  std::optional<std::string> lr_decay_style = std::nullopt;
  /// Steps in which the learning rate falls to min_lr, with the warm-up. Unset:
  /// the length of the training.
  std::optional<std::int64_t> lr_decay_iters = std::nullopt;
  /// The same in samples, for schedules that count these.
  std::optional<std::int64_t> lr_decay_samples = std::nullopt;
  /// The warm-up in steps.
  std::optional<std::int64_t> lr_warmup_iters = std::nullopt;
  /// The warm-up in samples.
  std::optional<std::int64_t> lr_warmup_samples = std::nullopt;
  /// The warm-up as a fraction of the decay; instead of its length.
  std::optional<double> lr_warmup_fraction = std::nullopt;
  /// The lowest learning rate after the warm-up. Unset: 0.
  std::optional<double> min_lr = std::nullopt;

  // Everything else.

  /// Further arguments of Megatron-LM, as a JSON object. Those that are fields
  /// above, by their names or Megatron-LM's ("tensor_model_parallel_size",
  /// "clip_grad"), override the fields; "lr_warmup_init", "lr_wsd_decay_iters",
  /// "lr_wsd_decay_samples" and "lr_wsd_decay_style" belong to the schedule.
  /// Any other is reported as without effect, unless it is null or what this
  /// library does ("exp_avg_dtype": "fp32").
  std::optional<std::string> other_megatron_args = std::nullopt;
};

}  // namespace accelerate
