#include "config/options/option_rows.h"

#include <array>

namespace accelerate::detail {

namespace {

using enum OptionKind;
using enum OptionUse;

// Options of DeepSpeed and Megatron-LM.
// clang-format off
constexpr std::array<OptionSpec, 43> kEngineRows{{
    {"use_deepspeed", "", "--use_deepspeed", "ACCELERATE_USE_DEEPSPEED", boolean, "false", "", acts, "DeepSpeed",
     "train as DeepSpeed's ZeRO would"},
    {"zero_stage", "deepspeed_config", "--zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", integer, "2", "0..3", acts, "DeepSpeed",
     "what is sharded: 1 optimizer state, 2 gradients as well, 3 parameters as well", ""},
    {"gradient_clipping", "deepspeed_config", "--gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", number, "", "0..", acts, "DeepSpeed",
     "norm that gradients are clipped to"},
    {"offload_optimizer_device", "deepspeed_config", "--offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", text, "none", "", acts, "DeepSpeed",
     "where optimizer state is kept: none, cpu or nvme", ""},
    {"offload_param_device", "deepspeed_config", "--offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", text, "none", "", acts, "DeepSpeed",
     "where parameters are kept: none, cpu or nvme", ""},
    {"offload_optimizer_nvme_path", "deepspeed_config", "--offload_optimizer_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", text, "none", "", carried, "DeepSpeed",
     "directory for optimizer state", ""},
    {"offload_param_nvme_path", "deepspeed_config", "--offload_param_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", text, "none", "", carried, "DeepSpeed",
     "directory for parameters", ""},
    {"zero3_init_flag", "deepspeed_config", "--zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", truth, "", "", acts, "DeepSpeed",
     "shard parameters as they are made"},
    {"zero3_save_16bit_model", "deepspeed_config", "--zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", truth, "false", "", carried, "DeepSpeed",
     "gather weights of 16 bits for saving", ""},
    {"deepspeed_config_file", "deepspeed_config", "--deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE", text, "", "", acts, "DeepSpeed",
     "DeepSpeed's own JSON file"},
    {"deepspeed_hostfile", "deepspeed_config", "--deepspeed_hostfile", "", text, "", "", launches, "DeepSpeed",
     "hosts for DeepSpeed's launcher; for ours: --hostfile"},
    {"deepspeed_exclusion_filter", "deepspeed_config", "--deepspeed_exclusion_filter", "", text, "", "", launches, "DeepSpeed",
     "hosts and devices that DeepSpeed's launcher leaves out"},
    {"deepspeed_inclusion_filter", "deepspeed_config", "--deepspeed_inclusion_filter", "", text, "", "", launches, "DeepSpeed",
     "hosts and devices that DeepSpeed's launcher uses"},
    {"deepspeed_multinode_launcher", "deepspeed_config", "--deepspeed_multinode_launcher", "", text, "", "", launches, "DeepSpeed",
     "how DeepSpeed's launcher reaches hosts: pdsh, standard, openmpi, mvapich, mpich, slurm or nossh", std::nullopt, "standard|pdsh"},
    {"deepspeed_moe_layer_cls_names", "deepspeed_config", "--deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", text, "", "", acts, "DeepSpeed",
     "classes of layers with experts, separated by commas"},
    {"use_megatron_lm", "", "--use_megatron_lm", "ACCELERATE_USE_MEGATRON_LM", boolean, "false", "", acts, "Megatron-LM",
     "parallelize by Megatron-LM's settings; Python programs train with Megatron-LM itself"},
    {"megatron_lm_tp_degree", "megatron_lm_config", "--megatron_lm_tp_degree", "MEGATRON_LM_TP_DEGREE", integer, "1", "1..", acts, "Megatron-LM",
     "ranks that split each layer"},
    {"megatron_lm_pp_degree", "megatron_lm_config", "--megatron_lm_pp_degree", "MEGATRON_LM_PP_DEGREE", integer, "1", "1..", acts, "Megatron-LM",
     "pipeline stages"},
    {"megatron_lm_num_micro_batches", "megatron_lm_config", "--megatron_lm_num_micro_batches", "MEGATRON_LM_NUM_MICRO_BATCHES", integer, "1", "1..", acts, "Megatron-LM",
     "micro-batches of the pipeline", ""},
    {"megatron_lm_sequence_parallelism", "megatron_lm_config", "--megatron_lm_sequence_parallelism", "MEGATRON_LM_SEQUENCE_PARALLELISM", truth, "false", "", acts, "Megatron-LM",
     "split sequences among the ranks of a layer", ""},
    {"megatron_lm_recompute_activations", "megatron_lm_config", "--megatron_lm_recompute_activations", "MEGATRON_LM_RECOMPUTE_ACTIVATIONS", truth, "false", "", acts, "Megatron-LM",
     "compute activations again in the backward pass", ""},
    {"megatron_lm_use_distributed_optimizer", "megatron_lm_config", "--megatron_lm_use_distributed_optimizer", "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", truth, "false", "", acts, "Megatron-LM",
     "shard optimizer state", ""},
    {"megatron_lm_gradient_clipping", "megatron_lm_config", "--megatron_lm_gradient_clipping", "MEGATRON_LM_GRADIENT_CLIPPING", number, "1.0", "0..", acts, "Megatron-LM",
     "norm that gradients are clipped to; 0 does not"},
    {"megatron_lm_use_custom_fsdp", "megatron_lm_config", "--megatron_lm_use_custom_fsdp", "MEGATRON_LM_USE_CUSTOM_FSDP", truth, "False", "", acts, "Megatron-LM",
     "Megatron's own FSDP"},
    {"megatron_lm_no_load_optim", "megatron_lm_config", "--megatron_lm_no_load_optim", "MEGATRON_LM_NO_LOAD_OPTIM", truth, "False", "", acts, "Megatron-LM",
     "load checkpoints without optimizers and schedules"},
    {"megatron_lm_eod_mask_loss", "megatron_lm_config", "--megatron_lm_eod_mask_loss", "MEGATRON_LM_EOD_MASK_LOSS", truth, "False", "", python_only, "Megatron-LM",
     "leave ends of documents out of the loss"},
    {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", "megatron_lm_config", "--megatron_lm_overlap_cpu_optimizer_d2h_h2d", "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D", truth, "False", "", python_only, "Megatron-LM",
     "copy optimizer state while computing"},
    {"megatron_lm_no_save_optim", "megatron_lm_config", "--megatron_lm_no_save_optim", "MEGATRON_LM_NO_SAVE_OPTIM", truth, "False", "", acts, "Megatron-LM",
     "save checkpoints without optimizers and schedules"},
    {"megatron_lm_optimizer_cpu_offload", "megatron_lm_config", "--megatron_lm_optimizer_cpu_offload", "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", truth, "False", "", acts, "Megatron-LM",
     "keep optimizer state in host memory"},
    {"megatron_lm_use_precision_aware_optimizer", "megatron_lm_config", "--megatron_lm_use_precision_aware_optimizer", "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER", truth, "False", "", acts, "Megatron-LM",
     "optimizer state of mixed precision"},
    {"megatron_lm_decoder_last_pipeline_num_layers", "megatron_lm_config", "--megatron_lm_decoder_last_pipeline_num_layers", "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS", integer, "", "0..", acts, "Megatron-LM",
     "layers of the last pipeline stage"},
    {"megatron_lm_recompute_granularity", "megatron_lm_config", "--megatron_lm_recompute_granularity", "MEGATRON_LM_RECOMPUTE_GRANULARITY", text, "full", "", acts, "Megatron-LM",
     "what is computed again: full or selective", ""},
    {"megatron_lm_recompute_method", "megatron_lm_config", "--megatron_lm_recompute_method", "MEGATRON_LM_RECOMPUTE_METHOD", text, "uniform", "", acts, "Megatron-LM",
     "uniform or block", ""},
    {"megatron_lm_recompute_num_layers", "megatron_lm_config", "--megatron_lm_recompute_num_layers", "MEGATRON_LM_RECOMPUTE_NUM_LAYERS", integer, "1", "0..", acts, "Megatron-LM",
     "layers that are computed again together", ""},
    {"megatron_lm_attention_backend", "megatron_lm_config", "--megatron_lm_attention_backend", "MEGATRON_LM_ATTENTION_BACKEND", text, "true", "", python_only, "Megatron-LM",
     "implementation of attention", ""},
    {"megatron_lm_expert_model_parallel_size", "megatron_lm_config", "--megatron_lm_expert_model_parallel_size", "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE", integer, "1", "1..", acts, "Megatron-LM",
     "ranks that share experts out", ""},
    {"megatron_lm_context_parallel_size", "megatron_lm_config", "--megatron_lm_context_parallel_size", "MEGATRON_LM_CONTEXT_PARALLEL_SIZE", integer, "1", "1..", acts, "Megatron-LM",
     "ranks that split the sequence", ""},
    {"megatron_lm_attention_dropout", "megatron_lm_config", "--megatron_lm_attention_dropout", "MEGATRON_LM_ATTENTION_DROPOUT", number, "0", "0..1", python_only, "Megatron-LM",
     "dropout after attention", ""},
    {"megatron_lm_hidden_dropout", "megatron_lm_config", "--megatron_lm_hidden_dropout", "MEGATRON_LM_HIDDEN_DROPOUT", number, "0", "0..1", python_only, "Megatron-LM",
     "dropout of hidden states", ""},
    {"megatron_lm_attention_softmax_in_fp32", "megatron_lm_config", "--megatron_lm_attention_softmax_in_fp32", "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32", truth, "true", "", python_only, "Megatron-LM",
     "softmax of attention in fp32", ""},
    {"megatron_lm_expert_tensor_parallel_size", "megatron_lm_config", "--megatron_lm_expert_tensor_parallel_size", "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE", integer, "1", "1..", acts, "Megatron-LM",
     "ranks that split each expert", ""},
    {"megatron_lm_calculate_per_token_loss", "megatron_lm_config", "--megatron_lm_calculate_per_token_loss", "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", truth, "true", "", acts, "Megatron-LM",
     "loss per token", ""},
    {"megatron_lm_use_rotary_position_embeddings", "megatron_lm_config", "--megatron_lm_use_rotary_position_embeddings", "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS", truth, "true", "", python_only, "Megatron-LM",
     "rotary embeddings of positions", ""},
}};
// clang-format on

}  // namespace

std::span<const OptionSpec> engine_option_rows() { return kEngineRows; }

}  // namespace accelerate::detail
