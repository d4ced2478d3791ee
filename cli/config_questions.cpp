#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include "base/text.h"
#include "cli/questions.h"

namespace accelerate::cli {

namespace {

using detail::ConfigJson;
using Applies = std::function<bool(const Answers&)>;

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

Applies when(const char* key, ConfigJson value = true) {
  return [key, value = std::move(value)](const Answers& answers) {
    return is(answers, key, value);
  };
}

std::function<std::string(const ConfigJson&)> at_least(std::int64_t least) {
  return [least](const ConfigJson& answer) {
    return answer.is_number() && answer < least
        ? detail::concat("Please enter a number of at least ", least, ".")
        : std::string();
  };
}

std::vector<std::pair<std::string, ConfigJson>> words(
    std::initializer_list<const char*> values) {
  std::vector<std::pair<std::string, ConfigJson>> choices;
  for (const char* const value : values) choices.emplace_back(value, value);
  return choices;
}

using Questions = std::vector<Question>;

void add_machine_questions(Questions& all) {
  all.push_back(
      {"num_machines",
       "How many machines take part",
       1,
       {},
       is_several,
       at_least(1)});
  all.push_back(
      {"machine_rank",
       "Which of them is this one, from 0",
       0,
       {},
       has_machines,
       at_least(0)});
  all.push_back(
      {"main_process_ip",
       "Address of the machine with rank 0",
       nullptr,
       {},
       has_machines,
       {}});
  all.push_back(
      {"main_process_port",
       "Port there, that all machines can reach",
       29500,
       {},
       has_machines,
       at_least(1)});
  all.push_back(
      {"same_network",
       "Are all machines in one network",
       true,
       {},
       has_machines,
       {}});
  all.push_back(
      {"rdzv_backend",
       "How does torchrun meet, for Python programs (static, c10d)",
       "static",
       {},
       when("same_network", false),
       {}});
}

void add_cpu_questions(Questions& all, int num_devices) {
  all.push_back(
      {"debug",
       "Check before each collective that all ranks call the same one? That "
       "finds what would hang, and is slower",
       false,
       {},
       is_several,
       {}});
  all.push_back(
      {"use_cpu",
       "Stay on the CPU even where there is an accelerator",
       num_devices == 0,
       {},
       [](const Answers& answers) { return type_of(answers) == "NO"; },
       {}});
  all.push_back(
      {"use_mpirun",
       "Shall mpirun start the ranks",
       false,
       {},
       when("distributed_type", "MULTI_CPU"),
       {}});
  all.push_back(
      {"mpirun_hostfile",
       "Path of mpirun's file of hosts",
       "~/hostfile",
       {},
       when("use_mpirun"),
       {}});
}

void add_dynamo_questions(Questions& all) {
  all.push_back(
      {"use_dynamo",
       "Shall torch.compile be used, in Python programs",
       false,
       {},
       when("for_python"),
       {}});
  all.push_back(
      {"dynamo_backend",
       "Which of its backends",
       "INDUCTOR",
       words(
           {"EAGER",
            "AOT_EAGER",
            "INDUCTOR",
            "AOT_TS_NVFUSER",
            "NVPRIMS_NVFUSER",
            "CUDAGRAPHS",
            "OFI",
            "FX2TRT",
            "ONNXRT",
            "TENSORRT",
            "AOT_TORCHXLA_TRACE_ONCE",
            "TORCHXLA_TRACE_ONCE",
            "TVM"}),
       when("use_dynamo"),
       {}});
  all.push_back(
      {"dynamo_options",
       "Change what torch.compile does by default",
       false,
       {},
       when("use_dynamo"),
       {}});
  all.push_back(
      {"dynamo_mode",
       "Which mode",
       "default",
       words({"default", "reduce-overhead", "max-autotune"}),
       when("dynamo_options"),
       {}});
  all.push_back(
      {"dynamo_use_fullgraph",
       "Compile models as a whole",
       false,
       {},
       when("dynamo_options"),
       {}});
  all.push_back(
      {"dynamo_use_dynamic",
       "May shapes change",
       false,
       {},
       when("dynamo_options"),
       {}});
  all.push_back(
      {"dynamo_use_regional_compilation",
       "Compile repeated blocks once",
       false,
       {},
       when("dynamo_options"),
       {}});
}

void add_deepspeed_questions(Questions& all) {
  const auto by_hand = when("use_deepspeed_file", false);
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
  all.push_back(
      {"zero_stage",
       "What is split over the ranks",
       2,
       {{"nothing", 0},
        {"optimizer state", 1},
        {"gradients, too", 2},
        {"parameters, too", 3}},
       by_hand,
       {}});
  const auto splits_gradients = [](const Answers& answers) {
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
         splits_gradients,
         {}});
  }
  all.push_back(
      {"offload_param_nvme_path",
       "Folder for parameters on that disk",
       "/nvme",
       {},
       when("offload_param_device", "nvme"),
       {}});
  all.push_back(
      {"offload_optimizer_nvme_path",
       "Folder for optimizer state on that disk",
       "/nvme",
       {},
       when("offload_optimizer_device", "nvme"),
       {}});
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
  all.push_back(
      {"zero3_save_16bit_model",
       "Gather weights of 16 bits for saving",
       false,
       {},
       when("zero_stage", 3),
       {}});
  all.push_back(
      {"zero3_init_flag",
       "Split parameters as they are made",
       false,
       {},
       when("use_deepspeed"),
       {}});
}

void add_fsdp_questions(Questions& all) {
  const auto uses = when("use_fsdp");
  all.push_back(
      {"use_fsdp",
       "Split parameters, gradients and optimizer state (FSDP)",
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
       uses,
       {}});
  all.push_back(
      {"fsdp_sharding_strategy",
       "What is split",
       "FULL_SHARD",
       words(
           {"FULL_SHARD",
            "SHARD_GRAD_OP",
            "NO_SHARD",
            "HYBRID_SHARD",
            "HYBRID_SHARD_ZERO2"}),
       when("fsdp_version", 1),
       {}});
  all.push_back(
      {"fsdp_reshard_after_forward",
       "Give gathered parameters back after the forward pass",
       true,
       {},
       when("fsdp_version", 2),
       {}});
  all.push_back(
      {"fsdp_offload_params",
       "Keep parts in host memory between uses",
       false,
       {},
       uses,
       {}});
  all.push_back(
      {"fsdp_auto_wrap_policy",
       "Which modules become units",
       "TRANSFORMER_BASED_WRAP",
       {{"those of given classes", "TRANSFORMER_BASED_WRAP"},
        {"those of a size", "SIZE_BASED_WRAP"},
        {"the model as a whole", "NO_WRAP"}},
       uses,
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
  all.push_back(
      {"fsdp_backward_prefetch",
       "When is the next unit of the backward pass gathered",
       "BACKWARD_PRE",
       words({"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}),
       when("fsdp_version", 1),
       {}});
  all.push_back(
      {"fsdp_state_dict_type",
       "How are weights saved",
       "SHARDED_STATE_DICT",
       words({"SHARDED_STATE_DICT", "FULL_STATE_DICT"}),
       uses,
       {}});
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
  all.push_back(
      {"fsdp_cpu_ram_efficient_loading",
       "Shall only rank 0 read weights",
       true,
       {},
       uses,
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
  all.push_back(
      {"fsdp_activation_checkpointing",
       "Compute activations again in the backward pass",
       false,
       {},
       uses,
       {}});
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
       {std::pair("dp_replicate_size", "Copies of the model"),
        std::pair("dp_shard_size", "Ranks that split it"),
        std::pair("tp_size", "Ranks that split each layer"),
        std::pair("cp_size", "Ranks that split the sequence")}) {
    all.push_back(
        {detail::concat("parallelism_config_", key),
         text,
         1,
         {},
         when("use_parallelism_config"),
         at_least(1)});
  }
  all.push_back(
      {"parallelism_config_cp_comm_strategy",
       "How do parts of a sequence see each other",
       "allgather",
       words({"allgather", "alltoall"}),
       [](const Answers& answers) {
         return answers.contains("parallelism_config_cp_size") &&
             answers["parallelism_config_cp_size"] > 1;
       },
       {}});
}

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
  all.push_back(
      {"megatron_lm_recompute_activations",
       "Compute activations again in the backward pass",
       true,
       {},
       uses,
       {}});
  all.push_back(
      {"megatron_lm_use_distributed_optimizer",
       "Split optimizer state",
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

void add_last_questions(Questions& all, int num_devices) {
  all.push_back(
      {"num_processes",
       "How many processes on all machines together",
       std::max(num_devices, 1),
       {},
       [](const Answers& answers) { return type_of(answers) != "NO"; },
       at_least(1)});
  all.push_back(
      {"gpu_ids",
       "Which accelerators of this machine, such as 0,2",
       "all",
       {},
       is_on_devices,
       {}});
  all.push_back(
      {"enable_cpu_affinity",
       "Bind each rank to cores of its own",
       false,
       {},
       is_several,
       {}});
  const auto is_tpu = when("distributed_type", "XLA");
  all.push_back(
      {"main_training_function",
       "Function that a TPU launch calls",
       "main",
       {},
       is_tpu,
       {}});
  all.push_back({"tpu_name", "Name of the TPU", nullptr, {}, is_tpu, {}});
  all.push_back({"tpu_zone", "Its zone", nullptr, {}, is_tpu, {}});
  all.push_back(
      {"mixed_precision",
       "Precision of the forward pass",
       "no",
       words({"no", "fp16", "bf16", "fp8"}),
       [](const Answers& answers) {
         return !is_yes(answers, "use_deepspeed_file");
       },
       {}});
  const auto is_fp8 = when("mixed_precision", "fp8");
  all.push_back(
      {"fp8_backend",
       "Whose fp8 do Python programs take",
       "te",
       {{"TransformerEngine", "te"}, {"torchao", "ao"}, {"MS-AMP", "msamp"}},
       is_fp8,
       {}});
  all.push_back(
      {"fp8_format",
       "Which format",
       "HYBRID",
       words({"HYBRID", "E4M3", "E5M2"}),
       is_fp8,
       {}});
  all.push_back(
      {"fp8_amax_history_len",
       "Steps whose largest values are remembered",
       1024,
       {},
       is_fp8,
       at_least(1)});
}

// Answers that only lead to others.
constexpr std::array<std::string_view, 11> kAside{
    "for_python",
    "use_mpirun",
    "use_dynamo",
    "dynamo_options",
    "use_deepspeed",
    "use_deepspeed_file",
    "use_gradient_clipping",
    "use_fsdp",
    "use_parallelism_config",
    "use_megatron_lm",
    "compute_environment"};

std::string section_of(const std::string& key) {
  for (const std::string_view family :
       {"fsdp", "dynamo", "fp8", "megatron_lm", "parallelism_config"}) {
    if (key.starts_with(detail::concat(family, "_"))) {
      return family == "parallelism_config" ? std::string(family)
                                            : detail::concat(family, "_config");
    }
  }
  if (key == "mpirun_hostfile") return "mpirun_config";
  const bool is_deepspeed = key.starts_with("zero") ||
      key.starts_with("offload_") || key.starts_with("deepspeed_") ||
      key.starts_with("gradient_");
  return is_deepspeed ? "deepspeed_config" : "";
}

}  // namespace

Questions config_questions(int num_devices) {
  Questions all;
  all.push_back(
      {"distributed_type",
       "On what do processes run",
       num_devices > 1 ? "MULTI_GPU" : "NO",
       {{"one process", "NO"},
        {"several on the CPU", "MULTI_CPU"},
        {"several on XPUs", "MULTI_XPU"},
        {"several on HPUs", "MULTI_HPU"},
        {"several on GPUs", "MULTI_GPU"},
        {"several on NPUs", "MULTI_NPU"},
        {"several on MLUs", "MULTI_MLU"},
        {"several on SDAAs", "MULTI_SDAA"},
        {"several on MUSA devices", "MULTI_MUSA"},
        {"several on Neuron devices", "MULTI_NEURON"},
        {"a TPU, in Python programs", "XLA"}},
       {},
       {}});
  add_machine_questions(all);
  add_cpu_questions(all, num_devices);
  all.push_back(
      {"for_python",
       "Will Python programs be started with this file, too",
       false,
       {},
       {},
       {}});
  add_dynamo_questions(all);
  add_deepspeed_questions(all);
  add_fsdp_questions(all);
  add_parallelism_questions(all);
  add_megatron_questions(all);
  add_last_questions(all, num_devices);
  return all;
}

ConfigJson config_of_answers(const Answers& answers) {
  ConfigJson values{
      {"compute_environment", "LOCAL_MACHINE"},
      {"debug", false},
      {"distributed_type", "NO"},
      {"downcast_bf16", false},
      {"enable_cpu_affinity", false},
      {"machine_rank", 0},
      {"main_training_function", "main"},
      {"mixed_precision", "no"},
      {"num_machines", 1},
      {"num_processes", 1},
      {"rdzv_backend", "static"},
      {"same_network", true},
      {"tpu_use_cluster", false},
      {"tpu_use_sudo", false},
      {"use_cpu", type_of(answers) == "MULTI_CPU"}};
  for (const auto& [key, answer] : answers.items()) {
    if (std::find(kAside.begin(), kAside.end(), key) != kAside.end()) continue;
    const std::string section = section_of(key);
    if (section.empty()) {
      values[key] = answer;
    } else {
      values[section][key] = answer;
    }
  }
  if (is_yes(answers, "fsdp_cpu_ram_efficient_loading") &&
      is(answers, "fsdp_version", 1)) {
    values["fsdp_config"]["fsdp_sync_module_states"] = true;
  }
  if (is_yes(answers, "use_deepspeed")) {
    values["distributed_type"] = "DEEPSPEED";
  } else if (is_yes(answers, "use_fsdp")) {
    values["distributed_type"] = "FSDP";
  } else if (is_yes(answers, "use_megatron_lm")) {
    values["distributed_type"] = "MEGATRON_LM";
  }
  if (is_yes(answers, "use_deepspeed_file")) values.erase("mixed_precision");
  return values;
}

}  // namespace accelerate::cli
