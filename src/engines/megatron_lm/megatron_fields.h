#pragma once

#include <optional>
#include <string_view>

#include <accelerate/megatron_lm.h>

namespace accelerate::detail {

/// When a field acts; where it does not, it is reported.
enum class MegatronUse {
  always,
  split_layers,      ///< with a tp_degree above 1
  stages,            ///< with a pp_degree above 1
  recomputing,       ///< with recompute_activations
  recomputing_full,  ///< if these recompute whole layers
  schedule,          ///< in scheduler_from_megatron_lm()
};

/// What is known about a field of MegatronLMOptions. The launcher's key, if it
/// has one, is "megatron_lm_" and the name.
struct MegatronField {
  MegatronUse use = MegatronUse::always;
  /// What to use where the field does not act.
  std::string_view instead = {};
  /// The least valid number.
  std::optional<int> least = std::nullopt;
  /// Megatron-LM's own name of the argument, if it is another.
  std::string_view argument = {};
};

/// Calls `visit(name, member, MegatronField)` for every field but
/// other_megatron_args.
template <class Visit>
void visit_megatron_fields(const Visit& visit) {
  using O = MegatronLMOptions;
  using enum MegatronUse;
  // clang-format off
  visit("tp_degree", &O::tp_degree, {.least = 1, .argument = "tensor_model_parallel_size"});
  visit("pp_degree", &O::pp_degree, {.least = 1, .argument = "pipeline_model_parallel_size"});
  visit("context_parallel_size", &O::context_parallel_size, {.least = 1});
  visit("expert_model_parallel_size", &O::expert_model_parallel_size, {.least = 1});
  visit("expert_tensor_parallel_size", &O::expert_tensor_parallel_size, {.least = 1});
  visit("gradient_clipping", &O::gradient_clipping, {.least = 0, .argument = "clip_grad"});
  visit("sequence_parallelism", &O::sequence_parallelism, {.use = split_layers, .instead = "it belongs to tp_degree", .argument = "sequence_parallel"});
  visit("num_micro_batches", &O::num_micro_batches, {stages, "use gradient_accumulation_steps", 1});
  visit("recompute_activations", &O::recompute_activations, {});
  visit("recompute_granularity", &O::recompute_granularity, {recomputing});
  visit("recompute_method", &O::recompute_method, {recomputing_full});
  visit("recompute_num_layers", &O::recompute_num_layers, {recomputing_full});
  visit("use_distributed_optimizer", &O::use_distributed_optimizer, {});
  visit("use_custom_fsdp", &O::use_custom_fsdp, {.argument = "use_megatron_fsdp"});
  visit("optimizer_cpu_offload", &O::optimizer_cpu_offload, {});
  visit("use_precision_aware_optimizer", &O::use_precision_aware_optimizer, {});
  visit("no_load_optim", &O::no_load_optim, {});
  visit("no_save_optim", &O::no_save_optim, {});
  visit("calculate_per_token_loss", &O::calculate_per_token_loss, {});
  visit("num_layers_per_virtual_pipeline_stage", &O::num_layers_per_virtual_pipeline_stage, {.use = stages, .instead = "it belongs to pp_degree", .least = 1});
  visit("decoder_last_pipeline_num_layers", &O::decoder_last_pipeline_num_layers, {.use = stages, .instead = "it belongs to pp_degree", .least = 0});
  visit("train_iters", &O::train_iters, {.use = schedule, .least = 0});
  visit("train_samples", &O::train_samples, {.use = schedule, .least = 0});
  visit("weight_decay_incr_style", &O::weight_decay_incr_style, {schedule});
  visit("start_weight_decay", &O::start_weight_decay, {schedule});
  visit("end_weight_decay", &O::end_weight_decay, {schedule});
  visit("lr_decay_style", &O::lr_decay_style, {schedule});
  visit("lr_decay_iters", &O::lr_decay_iters, {.use = schedule, .least = 0});
  visit("lr_decay_samples", &O::lr_decay_samples, {.use = schedule, .least = 0});
  visit("lr_warmup_iters", &O::lr_warmup_iters, {.use = schedule, .least = 0});
  visit("lr_warmup_samples", &O::lr_warmup_samples, {.use = schedule, .least = 0});
  visit("lr_warmup_fraction", &O::lr_warmup_fraction, {schedule});
  visit("min_lr", &O::min_lr, {schedule});
  // clang-format on
}

}  // namespace accelerate::detail
