#include "config/options/option_rows.h"

#include <array>

namespace accelerate::detail {

namespace {

using enum OptionKind;
using enum OptionUse;

// Options about how models are sharded.
// clang-format off
constexpr std::array<OptionSpec, 31> kShardingRows{{
    {"use_parallelism_config", "", "--use_parallelism_config", "ACCELERATE_USE_PARALLELISM_CONFIG", boolean, "false", "", acts, "Parallelism",
     "lay the ranks out as the degrees below say; giving one of them is enough"},
    {"parallelism_config_dp_replicate_size", "parallelism_config", "--parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", integer, "", "1..", acts, "Parallelism",
     "replicas of the model; unset: all ranks that the other degrees leave"},
    {"parallelism_config_dp_shard_size", "parallelism_config", "--parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", integer, "", "1..", acts, "Parallelism",
     "ranks that shard parameters, gradients and optimizer state; unset: all that the other degrees leave if sharding was asked for, else 1", "1"},
    {"parallelism_config_tp_size", "parallelism_config", "--parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE", integer, "1", "1..", acts, "Parallelism",
     "ranks that split each layer"},
    {"parallelism_config_cp_size", "parallelism_config", "--parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE", integer, "1", "1..", acts, "Parallelism",
     "ranks that split the sequence"},
    {"parallelism_config_pp_size", "parallelism_config", "--parallelism_config_pp_size", "PARALLELISM_CONFIG_PP_SIZE", integer, "1", "1..", acts, "Parallelism",
     "pipeline stages"},
    {"parallelism_config_ep_size", "parallelism_config", "--parallelism_config_ep_size", "PARALLELISM_CONFIG_EP_SIZE", integer, "1", "1..", acts, "Parallelism",
     "ranks, of those that read different data, over which experts are divided"},
    {"parallelism_config_sp_size", "parallelism_config", "--parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE", integer, "1", "1..", acts, "Parallelism",
     "ranks that split the sequence by exchanging attention heads (Ulysses)"},
    {"parallelism_config_cp_backend", "parallelism_config", "--parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", choice, "torch", "torch", carried, "Parallelism",
     "implementation of context parallelism"},
    {"parallelism_config_cp_comm_strategy", "parallelism_config", "--parallelism_config_cp_comm_strategy", "PARALLELISM_CONFIG_CP_COMM_STRATEGY", choice, "allgather", "allgather|alltoall", acts, "Parallelism",
     "how ranks exchange keys and values of their parts of a sequence"},
    {"parallelism_config_sp_backend", "parallelism_config", "--parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", choice, "deepspeed", "deepspeed", carried, "Parallelism",
     "implementation of sequence parallelism"},
    {"parallelism_config_sp_seq_length", "parallelism_config", "--parallelism_config_sp_seq_length", "PARALLELISM_CONFIG_SP_SEQ_LENGTH", text, "", "", acts, "Parallelism",
     "length of all sequences, if it does not vary; others are an error"},
    {"parallelism_config_sp_seq_length_is_variable", "parallelism_config", "--parallelism_config_sp_seq_length_is_variable", "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", truth, "True", "", acts, "Parallelism",
     "whether that length varies"},
    {"parallelism_config_sp_attn_implementation", "parallelism_config", "--parallelism_config_sp_attn_implementation", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", text, "sdpa", "", carried, "Parallelism",
     "attention of sequence parallelism"},
    {"use_fsdp", "", "--use_fsdp", "ACCELERATE_USE_FSDP", boolean, "false", "", acts, "FSDP",
     "shard parameters, gradients and optimizer state over the ranks"},
    {"fsdp_version", "fsdp_config", "--fsdp_version", "FSDP_VERSION", choice, "1", "1|2", acts, "FSDP",
     "which of PyTorch's implementations"},
    {"fsdp_offload_params", "fsdp_config", "--fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", truth, "false", "", acts, "FSDP",
     "keep shards in host memory between uses"},
    {"fsdp_min_num_params", "fsdp_config", "--fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS", integer, "0", "0..2^63", acts, "FSDP",
     "size of a unit, for SIZE_BASED_WRAP", "100000000"},
    {"fsdp_sharding_strategy", "fsdp_config", "--fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY", text, "FULL_SHARD", "", acts, "FSDP",
     "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2"},
    {"fsdp_reshard_after_forward", "fsdp_config", "--fsdp_reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", text, "true", "", acts, "FSDP",
     "reshard parameters after the forward pass: true, false, or a strategy"},
    {"fsdp_auto_wrap_policy", "fsdp_config", "--fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", text, "", "", acts, "FSDP",
     "which modules become units: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"},
    {"fsdp_transformer_layer_cls_to_wrap", "fsdp_config", "--fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", text, "", "", acts, "FSDP",
     "classes of the units, separated by commas"},
    {"fsdp_backward_prefetch", "fsdp_config", "--fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", text, "", "", acts, "FSDP",
     "when the next unit of the backward pass is gathered: BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"},
    {"fsdp_state_dict_type", "fsdp_config", "--fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE", text, "", "", carried, "FSDP",
     "how weights are saved: SHARDED_STATE_DICT, FULL_STATE_DICT or LOCAL_STATE_DICT", std::nullopt, "SHARDED_STATE_DICT|FULL_STATE_DICT"},
    {"fsdp_forward_prefetch", "fsdp_config", "--fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", truth, "", "", acts, "FSDP",
     "gather the next unit of the forward pass early; unset: as soon as the order of the units is known", "false"},
    {"fsdp_use_orig_params", "fsdp_config", "--fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", truth, "", "", carried, "FSDP",
     "keep the module's own parameters", "true"},
    {"fsdp_cpu_ram_efficient_loading", "fsdp_config", "--fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", truth, "false", "", acts, "FSDP",
     "only rank 0 reads weights", "true"},
    {"fsdp_sync_module_states", "fsdp_config", "--fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", truth, "", "", carried, "FSDP",
     "begin with the weights of rank 0", "true"},
    {"fsdp_activation_checkpointing", "fsdp_config", "--fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", truth, "false", "", acts, "FSDP",
     "compute activations of a unit again in the backward pass"},
    {"fsdp_activation_checkpointing_offload", "fsdp_config", "--fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", truth, "false", "", acts, "FSDP",
     "keep the inputs of such units in host memory"},
    {"fsdp_ignored_modules", "fsdp_config", "", "FSDP_IGNORED_MODULES", text, "", "", acts, "FSDP",
     "modules that are left alone: a regular expression on their names"},
}};
// clang-format on

}  // namespace

std::span<const OptionSpec> sharding_option_rows() { return kShardingRows; }

}  // namespace accelerate::detail
