#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include "base/text/text.h"
#include "cli/config/question_parts.h"

namespace accelerate::cli {

namespace {

using detail::ConfigJson;

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
       "Rendezvous backend of torchrun, for Python programs (static, c10d)",
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
       plain_choices(
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
}

void add_dynamo_options(Questions& all) {
  all.push_back(
      {"dynamo_mode",
       "Which mode",
       "default",
       plain_choices({"default", "reduce-overhead", "max-autotune"}),
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
       plain_choices({"no", "fp16", "bf16", "fp8"}),
       [](const Answers& answers) {
         return !is_yes(answers, "use_deepspeed_file");
       },
       {}});
}

void add_fp8_questions(Questions& all) {
  const auto is_fp8 = when("mixed_precision", "fp8");
  all.push_back(
      {"fp8_backend",
       "Which fp8 library do Python programs use",
       "te",
       {{"TransformerEngine", "te"}, {"torchao", "ao"}, {"MS-AMP", "msamp"}},
       is_fp8,
       {}});
  all.push_back(
      {"fp8_format",
       "Which format",
       "HYBRID",
       plain_choices({"HYBRID", "E4M3", "E5M2"}),
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

// Answers that only decide which questions follow, and are not written.
constexpr std::array<std::string_view, 11> kNotWritten{
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
    if (key.starts_with(detail::format("{}_", family))) {
      return family == "parallelism_config"
          ? std::string(family)
          : detail::format("{}_config", family);
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
  add_dynamo_options(all);
  add_deepspeed_questions(all);
  add_fsdp_questions(all);
  add_parallelism_questions(all);
  add_megatron_questions(all);
  add_last_questions(all, num_devices);
  add_fp8_questions(all);
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
    if (std::find(kNotWritten.begin(), kNotWritten.end(), key) !=
        kNotWritten.end())
      continue;
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
