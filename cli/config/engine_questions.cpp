#include <tuple>

#include "base/text/text.h"
#include "cli/config/question_parts.h"

namespace accelerate::cli {

using detail::ConfigJson;

bool is(const Answers& answers, const char* key, const ConfigJson& value) {
  return answers.contains(key) && answers[key] == value;
}
bool is_yes(const Answers& answers, const char* key) {
  return is(answers, key, true);
}
std::string type_of(const Answers& answers) {
  return answers.value("distributed_type", "NO");
}
bool is_several(const Answers& answers) {
  const std::string type = type_of(answers);
  return type != "NO" && type != "XLA";
}
bool is_on_devices(const Answers& answers) {
  const std::string type = type_of(answers);
  return is_several(answers) && type != "MULTI_CPU";
}
bool has_machines(const Answers& answers) {
  return answers.contains("num_machines") && answers["num_machines"] > 1;
}

Applies when(const char* key, ConfigJson value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return is(answers, key, value);
  };
}

std::function<std::string(const ConfigJson&)> at_least(std::int64_t least) {
  return [least](const ConfigJson& answer) {
    return answer.is_number() && answer < least
        ? detail::format("Please enter a number of at least {}.", least)
        : std::string();
  };
}

std::vector<std::pair<std::string, ConfigJson>> plain_choices(
    std::initializer_list<const char*> values) {
  std::vector<std::pair<std::string, ConfigJson>> choices;
  for (const char* const value : values) choices.emplace_back(value, value);
  return choices;
}

namespace {

void add_deepspeed_choice(Questions& all) {
  all.push_back(
      {"use_deepspeed",
       "Train as DeepSpeed's ZeRO does",
       false,
       {},
       [](const Answers& answers) {
         return type_of(answers) != "MULTI_CPU" && type_of(answers) != "XLA" &&
             type_of(answers) != "MULTI_NEURON" && !is_yes(answers, "use_cpu");
       },
       {}});
  all.push_back(
      {"use_deepspeed_file",
       "Is there a JSON file of DeepSpeed's",
       false,
       {},
       when("use_deepspeed"),
       {}});
  all.push_back(
      {"deepspeed_config_file",
       "Its path",
       nullptr,
       {},
       when("use_deepspeed_file"),
       {}});
}

void add_deepspeed_stage(Questions& all) {
  all.push_back(
      {"zero_stage",
       "What is sharded over the ranks",
       2,
       {{"nothing", 0},
        {"optimizer state", 1},
        {"gradients, too", 2},
        {"parameters, too", 3}},
       when("use_deepspeed_file", false),
       {}});
}

void add_deepspeed_offload(Questions& all) {
  const auto shards_gradients = [](const Answers& answers) {
    return answers.contains("zero_stage") && answers["zero_stage"] >= 2;
  };
  for (const auto& [key, text] :
       {std::pair("offload_optimizer_device", "Where is optimizer state kept"),
        std::pair("offload_param_device", "Where are parameters kept")}) {
    all.push_back(
        {key,
         text,
         "none",
         {{"on the device", "none"},
          {"in host memory", "cpu"},
          {"on an NVMe disk", "nvme"}},
         shards_gradients,
         {}});
  }
  all.push_back(
      {"offload_param_nvme_path",
       "Directory for parameters on that disk",
       "/nvme",
       {},
       when("offload_param_device", "nvme"),
       {}});
  all.push_back(
      {"offload_optimizer_nvme_path",
       "Directory for optimizer state on that disk",
       "/nvme",
       {},
       when("offload_optimizer_device", "nvme"),
       {}});
}

void add_deepspeed_steps(Questions& all) {
  const auto by_hand = when("use_deepspeed_file", false);
  all.push_back(
      {"gradient_accumulation_steps",
       "Micro-batches for each step of the optimizer",
       1,
       {},
       by_hand,
       at_least(1)});
  all.push_back(
      {"use_gradient_clipping", "Clip gradients", false, {}, by_hand, {}});
  all.push_back(
      {"gradient_clipping",
       "To which norm",
       1.0,
       {},
       when("use_gradient_clipping"),
       {}});
}

void add_deepspeed_parameters(Questions& all) {
  all.push_back(
      {"zero3_save_16bit_model",
       "Gather weights of 16 bits for saving",
       false,
       {},
       when("zero_stage", 3),
       {}});
  all.push_back(
      {"zero3_init_flag",
       "Shard parameters as they are made",
       false,
       {},
       when("use_deepspeed"),
       {}});
}

void add_fsdp_choice(Questions& all) {
  all.push_back(
      {"use_fsdp",
       "Shard parameters, gradients and optimizer state (FSDP)",
       false,
       {},
       [](const Answers& answers) {
         return is_several(answers) && !is_yes(answers, "use_deepspeed") &&
             type_of(answers) != "MULTI_NEURON";
       },
       {}});
  all.push_back(
      {"fsdp_version",
       "Which of PyTorch's versions of it",
       2,
       {{"1", 1}, {"2", 2}},
       when("use_fsdp"),
       {}});
}

void add_fsdp_sharding(Questions& all) {
  all.push_back(
      {"fsdp_sharding_strategy",
       "What is sharded",
       "FULL_SHARD",
       plain_choices(
           {"FULL_SHARD",
            "SHARD_GRAD_OP",
            "NO_SHARD",
            "HYBRID_SHARD",
            "HYBRID_SHARD_ZERO2"}),
       when("fsdp_version", 1),
       {}});
  all.push_back(
      {"fsdp_reshard_after_forward",
       "Reshard parameters after the forward pass",
       true,
       {},
       when("fsdp_version", 2),
       {}});
  all.push_back(
      {"fsdp_offload_params",
       "Keep shards in host memory between uses",
       false,
       {},
       when("use_fsdp"),
       {}});
}

void add_fsdp_units(Questions& all) {
  all.push_back(
      {"fsdp_auto_wrap_policy",
       "Which modules become units",
       "TRANSFORMER_BASED_WRAP",
       {{"those of given classes", "TRANSFORMER_BASED_WRAP"},
        {"those of a size", "SIZE_BASED_WRAP"},
        {"the model as a whole", "NO_WRAP"}},
       when("use_fsdp"),
       {}});
  all.push_back(
      {"fsdp_transformer_layer_cls_to_wrap",
       "Their classes, separated by commas",
       nullptr,
       {},
       when("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
       {}});
  all.push_back(
      {"fsdp_min_num_params",
       "Parameters of a unit, at least",
       100000000,
       {},
       when("fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"),
       at_least(0)});
}

void add_fsdp_backward_prefetch(Questions& all) {
  all.push_back(
      {"fsdp_backward_prefetch",
       "When is the next unit of the backward pass gathered",
       "BACKWARD_PRE",
       plain_choices({"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}),
       when("fsdp_version", 1),
       {}});
}

void add_fsdp_state_dict_type(Questions& all) {
  all.push_back(
      {"fsdp_state_dict_type",
       "How are weights saved",
       "SHARDED_STATE_DICT",
       plain_choices({"SHARDED_STATE_DICT", "FULL_STATE_DICT"}),
       when("use_fsdp"),
       {}});
}

void add_fsdp_version_1_details(Questions& all) {
  for (const auto& [key, text, value] :
       {std::tuple(
            "fsdp_forward_prefetch",
            "Gather the next unit of the forward pass early",
            false),
        std::tuple(
            "fsdp_use_orig_params",
            "Keep the module's own parameters",
            true)}) {
    all.push_back({key, text, value, {}, when("fsdp_version", 1), {}});
  }
}

void add_fsdp_initial_weights(Questions& all) {
  all.push_back(
      {"fsdp_cpu_ram_efficient_loading",
       "Shall only rank 0 read weights",
       true,
       {},
       when("use_fsdp"),
       {}});
  all.push_back(
      {"fsdp_sync_module_states",
       "Begin with the weights of rank 0",
       true,
       {},
       [](const Answers& answers) {
         return is(answers, "fsdp_version", 1) &&
             !is_yes(answers, "fsdp_cpu_ram_efficient_loading");
       },
       {}});
}

void add_fsdp_activation_checkpointing(Questions& all) {
  all.push_back(
      {"fsdp_activation_checkpointing",
       "Compute activations again in the backward pass",
       false,
       {},
       when("use_fsdp"),
       {}});
}

}  // namespace

void add_deepspeed_questions(Questions& all) {
  add_deepspeed_choice(all);
  add_deepspeed_stage(all);
  add_deepspeed_offload(all);
  add_deepspeed_steps(all);
  add_deepspeed_parameters(all);
}

void add_fsdp_questions(Questions& all) {
  add_fsdp_choice(all);
  add_fsdp_sharding(all);
  add_fsdp_units(all);
  add_fsdp_backward_prefetch(all);
  add_fsdp_state_dict_type(all);
  add_fsdp_version_1_details(all);
  add_fsdp_initial_weights(all);
  add_fsdp_activation_checkpointing(all);
}

void add_parallelism_questions(Questions& all) {
  all.push_back(
      {"use_parallelism_config",
       "Lay the ranks out in several dimensions",
       false,
       {},
       when("fsdp_version", 2),
       {}});
  for (const auto& [key, text] :
       {std::pair("dp_replicate_size", "Replicas of the model"),
        std::pair("dp_shard_size", "Ranks that shard it"),
        std::pair("tp_size", "Ranks that split each layer"),
        std::pair("cp_size", "Ranks that split the sequence")}) {
    all.push_back(
        {detail::format("parallelism_config_{}", key),
         text,
         1,
         {},
         when("use_parallelism_config"),
         at_least(1)});
  }
  all.push_back(
      {"parallelism_config_cp_comm_strategy",
       "How do ranks exchange keys and values of a sequence",
       "allgather",
       plain_choices({"allgather", "alltoall"}),
       [](const Answers& answers) {
         return answers.contains("parallelism_config_cp_size") &&
             answers["parallelism_config_cp_size"] > 1;
       },
       {}});
}

namespace {

void add_megatron_steps(Questions& all) {
  const auto uses = when("use_megatron_lm");
  all.push_back(
      {"megatron_lm_recompute_activations",
       "Compute activations again in the backward pass",
       true,
       {},
       uses,
       {}});
  all.push_back(
      {"megatron_lm_use_distributed_optimizer",
       "Shard optimizer state",
       true,
       {},
       uses,
       {}});
  all.push_back(
      {"megatron_lm_gradient_clipping",
       "Norm that gradients are clipped to; 0 does not",
       1.0,
       {},
       uses,
       {}});
}

}  // namespace

void add_megatron_questions(Questions& all) {
  const auto uses = when("use_megatron_lm");
  all.push_back(
      {"use_megatron_lm",
       "Train by Megatron-LM, in Python programs",
       false,
       {},
       [](const Answers& answers) {
         return is_yes(answers, "for_python") &&
             type_of(answers) == "MULTI_GPU" && !is_yes(answers, "use_fsdp") &&
             !is_yes(answers, "use_deepspeed");
       },
       {}});
  all.push_back(
      {"megatron_lm_tp_degree",
       "Ranks that split each layer",
       1,
       {},
       uses,
       at_least(1)});
  all.push_back(
      {"megatron_lm_sequence_parallelism",
       "Split sequences among them",
       true,
       {},
       [](const Answers& answers) {
         return answers.contains("megatron_lm_tp_degree") &&
             answers["megatron_lm_tp_degree"] > 1;
       },
       {}});
  all.push_back(
      {"megatron_lm_pp_degree", "Pipeline stages", 1, {}, uses, at_least(1)});
  all.push_back(
      {"megatron_lm_num_micro_batches",
       "Micro-batches of the pipeline",
       1,
       {},
       [](const Answers& answers) {
         return answers.contains("megatron_lm_pp_degree") &&
             answers["megatron_lm_pp_degree"] > 1;
       },
       at_least(1)});
  add_megatron_steps(all);
}

}  // namespace accelerate::cli
