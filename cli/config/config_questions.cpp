#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text/text.h"
#include "cli/config/questions.h"
#include "config/options/option_table.h"

namespace accelerate::cli {

namespace {

using detail::ConfigJson;
using Applies = std::function<bool(const Answers&)>;
using Questions = std::vector<Question>;
using Choices = std::vector<std::pair<std::string, ConfigJson>>;

// Whether the question was asked and has this answer.
bool is(const Answers& answers, const char* key, const ConfigJson& value) {
  return answers.contains(key) && answers[key] == value;
}
bool is_yes(const Answers& answers, const char* key) {
  return is(answers, key, true);
}
bool is_above(const Answers& answers, const char* key, int value) {
  return answers.contains(key) && answers[key] > value;
}
std::string type_of(const Answers& answers) {
  return answers.value("distributed_type", "NO");
}
bool is_several(const Answers& answers) {
  const std::string type = type_of(answers);
  return type != "NO" && type != "XLA";
}

Applies when(const char* key, ConfigJson value = true) {
  return [key, value = std::move(value)](const Answers& answers) {
    return is(answers, key, value);
  };
}
Applies above(const char* key, int value) {
  return [key, value](const Answers& answers) {
    return is_above(answers, key, value);
  };
}

Question
ask(std::string key, std::string text, ConfigJson otherwise, Applies applies) {
  return {
      std::move(key),
      std::move(text),
      std::move(otherwise),
      {},
      std::move(applies),
      {}};
}

Question ask_number(
    std::string key,
    std::string text,
    ConfigJson otherwise,
    Applies applies,
    std::int64_t least) {
  Question question =
      ask(std::move(key),
          std::move(text),
          std::move(otherwise),
          std::move(applies));
  question.complaint = [least](const ConfigJson& answer) {
    return answer.is_number() && answer < least
        ? detail::format("Please enter a number of at least {}.", least)
        : std::string();
  };
  return question;
}

Question choose(
    std::string key,
    std::string text,
    ConfigJson otherwise,
    Applies applies,
    Choices choices) {
  return {
      std::move(key),
      std::move(text),
      std::move(otherwise),
      std::move(choices),
      std::move(applies),
      {}};
}

// Choices shown as they are written to the file.
Choices words(std::initializer_list<const char*> values) {
  Choices choices;
  for (const char* const value : values) choices.emplace_back(value, value);
  return choices;
}

void add(Questions& all, std::initializer_list<Question> more) {
  all.insert(all.end(), more);
}

// clang-format off

void add_machine_questions(Questions& all, int num_devices) {
  const Applies has_machines = above("num_machines", 1);
  add(all, {
    choose("distributed_type", "On what do processes run", num_devices > 1 ? "MULTI_GPU" : "NO", {}, {
      {"one process", "NO"}, {"several on the CPU", "MULTI_CPU"}, {"several on XPUs", "MULTI_XPU"},
      {"several on HPUs", "MULTI_HPU"}, {"several on GPUs", "MULTI_GPU"}, {"several on NPUs", "MULTI_NPU"},
      {"several on MLUs", "MULTI_MLU"}, {"several on SDAAs", "MULTI_SDAA"}, {"several on MUSA devices", "MULTI_MUSA"},
      {"several on Neuron devices", "MULTI_NEURON"}, {"a TPU, in Python programs", "XLA"}}),
    ask_number("num_machines", "How many machines take part", 1, is_several, 1),
    ask_number("machine_rank", "Which of them is this one, from 0", 0, has_machines, 0),
    ask("main_process_ip", "Address of the machine with rank 0", nullptr, has_machines),
    ask_number("main_process_port", "Port there, that all machines can reach", 29500, has_machines, 1),
    ask("same_network", "Are all machines in one network", true, has_machines),
    ask("rdzv_backend", "Rendezvous backend of torchrun, for Python programs (static, c10d)", "static", when("same_network", false)),
    ask("debug", "Check before each collective that all ranks call the same one? That finds what would hang, and is slower", false, is_several),
    ask("use_cpu", "Stay on the CPU even where there is an accelerator", num_devices == 0,
        [](const Answers& answers) { return type_of(answers) == "NO"; }),
    ask("use_mpirun", "Shall mpirun start the ranks", false, when("distributed_type", "MULTI_CPU")),
    ask("mpirun_hostfile", "Path of mpirun's file of hosts", "~/hostfile", when("use_mpirun")),
    ask("for_python", "Will Python programs be started with this file as well", false, {})});
}

void add_dynamo_questions(Questions& all) {
  const Applies changes = when("dynamo_options");
  add(all, {
    ask("use_dynamo", "Shall torch.compile be used, in Python programs", false, when("for_python")),
    choose("dynamo_backend", "Which of its backends", "INDUCTOR", when("use_dynamo"),
           words({"EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT",
                  "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM"})),
    ask("dynamo_options", "Change what torch.compile does by default", false, when("use_dynamo")),
    choose("dynamo_mode", "Which mode", "default", changes, words({"default", "reduce-overhead", "max-autotune"})),
    ask("dynamo_use_fullgraph", "Compile models as a whole", false, changes),
    ask("dynamo_use_dynamic", "May shapes change", false, changes),
    ask("dynamo_use_regional_compilation", "Compile repeated blocks once", false, changes)});
}

void add_deepspeed_questions(Questions& all) {
  const Applies by_hand = when("use_deepspeed_file", false);
  const Applies shards_gradients = above("zero_stage", 1);
  const Choices devices{{"on the device", "none"}, {"in host memory", "cpu"}, {"on an NVMe disk", "nvme"}};
  add(all, {
    ask("use_deepspeed", "Train as DeepSpeed's ZeRO does", false, [](const Answers& answers) {
      const std::string type = type_of(answers);
      return type != "MULTI_CPU" && type != "XLA" && type != "MULTI_NEURON" && !is_yes(answers, "use_cpu");
    }),
    ask("use_deepspeed_file", "Is there a JSON file of DeepSpeed's", false, when("use_deepspeed")),
    ask("deepspeed_config_file", "Its path", nullptr, when("use_deepspeed_file")),
    choose("zero_stage", "What is sharded over the ranks", 2, by_hand,
           {{"nothing", 0}, {"optimizer state", 1}, {"gradients as well", 2}, {"parameters as well", 3}}),
    choose("offload_optimizer_device", "Where is optimizer state kept", "none", shards_gradients, devices),
    choose("offload_param_device", "Where are parameters kept", "none", shards_gradients, devices),
    ask("offload_param_nvme_path", "Directory for parameters on that disk", "/nvme", when("offload_param_device", "nvme")),
    ask("offload_optimizer_nvme_path", "Directory for optimizer state on that disk", "/nvme", when("offload_optimizer_device", "nvme")),
    ask_number("gradient_accumulation_steps", "Micro-batches for each step of the optimizer", 1, by_hand, 1),
    ask("use_gradient_clipping", "Clip gradients", false, by_hand),
    ask("gradient_clipping", "To which norm", 1.0, when("use_gradient_clipping")),
    ask("zero3_save_16bit_model", "Gather weights of 16 bits for saving", false, when("zero_stage", 3)),
    ask("zero3_init_flag", "Shard parameters as they are made", false, when("use_deepspeed"))});
}

void add_fsdp_questions(Questions& all) {
  const Applies is_used = when("use_fsdp");
  const Applies is_1 = when("fsdp_version", 1);
  const Applies is_2 = when("fsdp_version", 2);
  add(all, {
    ask("use_fsdp", "Shard parameters, gradients and optimizer state (FSDP)", false, [](const Answers& answers) {
      return is_several(answers) && !is_yes(answers, "use_deepspeed") && type_of(answers) != "MULTI_NEURON";
    }),
    choose("fsdp_version", "Which of PyTorch's versions of it", 2, is_used, {{"1", 1}, {"2", 2}}),
    choose("fsdp_sharding_strategy", "What is sharded", "FULL_SHARD", is_1,
           words({"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"})),
    ask("fsdp_reshard_after_forward", "Reshard parameters after the forward pass", true, is_2),
    ask("fsdp_offload_params", "Keep shards in host memory between uses", false, is_used),
    choose("fsdp_auto_wrap_policy", "Which modules become units", "TRANSFORMER_BASED_WRAP", is_used,
           {{"those of given classes", "TRANSFORMER_BASED_WRAP"}, {"those of a size", "SIZE_BASED_WRAP"}, {"the model as a whole", "NO_WRAP"}}),
    ask("fsdp_transformer_layer_cls_to_wrap", "Their classes, separated by commas", nullptr, when("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")),
    ask_number("fsdp_min_num_params", "Parameters of a unit, at least", 100000000, when("fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"), 0),
    choose("fsdp_backward_prefetch", "When is the next unit of the backward pass gathered", "BACKWARD_PRE", is_1,
           words({"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"})),
    choose("fsdp_state_dict_type", "How are weights saved", "SHARDED_STATE_DICT", is_used, words({"SHARDED_STATE_DICT", "FULL_STATE_DICT"})),
    ask("fsdp_forward_prefetch", "Gather the next unit of the forward pass early", false, is_1),
    ask("fsdp_use_orig_params", "Keep the module's own parameters", true, is_1),
    ask("fsdp_cpu_ram_efficient_loading", "Shall only rank 0 read weights", true, is_used),
    ask("fsdp_sync_module_states", "Begin with the weights of rank 0", true, [](const Answers& answers) {
      return is(answers, "fsdp_version", 1) && !is_yes(answers, "fsdp_cpu_ram_efficient_loading");
    }),
    ask("fsdp_activation_checkpointing", "Compute activations again in the backward pass", false, is_used)});
}

void add_parallelism_questions(Questions& all) {
  const Applies is_used = when("use_parallelism_config");
  const Applies megatron = when("use_megatron_lm");
  add(all, {
    ask("use_parallelism_config", "Lay the ranks out in several dimensions", false, when("fsdp_version", 2)),
    ask_number("parallelism_config_dp_replicate_size", "Replicas of the model", 1, is_used, 1),
    ask_number("parallelism_config_dp_shard_size", "Ranks that shard it", 1, is_used, 1),
    ask_number("parallelism_config_tp_size", "Ranks that split each layer", 1, is_used, 1),
    ask_number("parallelism_config_cp_size", "Ranks that split the sequence", 1, is_used, 1),
    choose("parallelism_config_cp_comm_strategy", "How do ranks exchange keys and values of a sequence", "allgather",
           above("parallelism_config_cp_size", 1), words({"allgather", "alltoall"})),
    ask("use_megatron_lm", "Train by Megatron-LM, in Python programs", false, [](const Answers& answers) {
      return is_yes(answers, "for_python") && type_of(answers) == "MULTI_GPU" && !is_yes(answers, "use_fsdp") &&
          !is_yes(answers, "use_deepspeed");
    }),
    ask_number("megatron_lm_tp_degree", "Ranks that split each layer", 1, megatron, 1),
    ask("megatron_lm_sequence_parallelism", "Split sequences among them", true, above("megatron_lm_tp_degree", 1)),
    ask_number("megatron_lm_pp_degree", "Pipeline stages", 1, megatron, 1),
    ask_number("megatron_lm_num_micro_batches", "Micro-batches of the pipeline", 1, above("megatron_lm_pp_degree", 1), 1),
    ask("megatron_lm_recompute_activations", "Compute activations again in the backward pass", true, megatron),
    ask("megatron_lm_use_distributed_optimizer", "Shard optimizer state", true, megatron),
    ask("megatron_lm_gradient_clipping", "Norm that gradients are clipped to; 0 does not", 1.0, megatron)});
}

void add_last_questions(Questions& all, int num_devices) {
  const Applies is_tpu = when("distributed_type", "XLA");
  const Applies is_fp8 = when("mixed_precision", "fp8");
  add(all, {
    ask_number("num_processes", "How many processes on all machines together", std::max(num_devices, 1),
               [](const Answers& answers) { return type_of(answers) != "NO"; }, 1),
    ask("gpu_ids", "Which accelerators of this machine, such as 0,2", "all",
        [](const Answers& answers) { return is_several(answers) && type_of(answers) != "MULTI_CPU"; }),
    ask("enable_cpu_affinity", "Bind each rank to cores of its own", false, is_several),
    ask("main_training_function", "Function that a TPU launch calls", "main", is_tpu),
    ask("tpu_name", "Name of the TPU", nullptr, is_tpu),
    ask("tpu_zone", "Its zone", nullptr, is_tpu),
    choose("mixed_precision", "Precision of the forward pass", "no",
           [](const Answers& answers) { return !is_yes(answers, "use_deepspeed_file"); }, words({"no", "fp16", "bf16", "fp8"})),
    choose("fp8_backend", "Which fp8 library do Python programs use", "te", is_fp8,
           {{"TransformerEngine", "te"}, {"torchao", "ao"}, {"MS-AMP", "msamp"}}),
    choose("fp8_format", "Which format", "HYBRID", is_fp8, words({"HYBRID", "E4M3", "E5M2"})),
    ask_number("fp8_amax_history_len", "Steps whose largest values are remembered", 1024, is_fp8, 1)});
}

// clang-format on

}  // namespace

Questions config_questions(int num_devices) {
  Questions all;
  add_machine_questions(all, num_devices);
  add_dynamo_questions(all);
  add_deepspeed_questions(all);
  add_fsdp_questions(all);
  add_parallelism_questions(all);
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
    const detail::OptionSpec* const spec = detail::find_option(key);
    // Other answers only decide which questions follow.
    if (spec == nullptr) continue;
    if (key == "gradient_accumulation_steps") {
      values["deepspeed_config"][key] = answer;
    } else if (!spec->section.empty()) {
      values[std::string(spec->section)][key] = answer;
    } else if (detail::is_config_key(key)) {
      values[key] = answer;
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
