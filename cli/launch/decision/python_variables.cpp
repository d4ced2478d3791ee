#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>

#include "base/text/text.h"
#include "cli/launch/decision/launch_decision.h"

namespace accelerate::cli {

namespace {

using detail::Origin;
using detail::Resolved;
using detail::Settings;

/// How Accelerate writes a value into a variable.
enum class Style {
  as_written,
  lower,
  upper,
  boolean,      // True, False
  one_or_zero,  // unless a file wrote otherwise
};

struct Export {
  std::string_view key;
  std::string_view variable;
  Style style = Style::as_written;
};

constexpr std::array kDynamo{
    Export{"dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", Style::upper},
    Export{"dynamo_mode", "ACCELERATE_DYNAMO_MODE"},
    Export{
        "dynamo_use_fullgraph",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH",
        Style::boolean},
    Export{
        "dynamo_use_dynamic",
        "ACCELERATE_DYNAMO_USE_DYNAMIC",
        Style::boolean},
    Export{
        "dynamo_use_regional_compilation",
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
        Style::boolean}};

constexpr std::array kFsdp{
    Export{"fsdp_version", "FSDP_VERSION"},
    Export{"fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY"},
    Export{
        "fsdp_reshard_after_forward",
        "FSDP_RESHARD_AFTER_FORWARD",
        Style::lower},
    Export{"fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", Style::lower},
    Export{"fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS"},
    Export{"fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY"},
    Export{
        "fsdp_transformer_layer_cls_to_wrap",
        "FSDP_TRANSFORMER_CLS_TO_WRAP"},
    Export{"fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH"},
    Export{"fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE"},
    Export{"fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", Style::lower},
    Export{"fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", Style::lower},
    Export{
        "fsdp_cpu_ram_efficient_loading",
        "FSDP_CPU_RAM_EFFICIENT_LOADING",
        Style::lower},
    Export{"fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", Style::lower},
    Export{
        "fsdp_activation_checkpointing",
        "FSDP_ACTIVATION_CHECKPOINTING",
        Style::lower},
    Export{
        "fsdp_activation_checkpointing_offload",
        "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
        Style::lower},
    Export{"fsdp_ignored_modules", "FSDP_IGNORED_MODULES"}};

constexpr std::array kDeepSpeed{
    Export{"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
    Export{"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", Style::lower},
    Export{
        "offload_optimizer_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        Style::lower},
    Export{
        "offload_param_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        Style::lower},
    Export{
        "offload_optimizer_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"},
    Export{
        "offload_param_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"},
    Export{"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", Style::lower},
    Export{
        "zero3_save_16bit_model",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
        Style::lower},
    Export{"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
    Export{
        "deepspeed_moe_layer_cls_names",
        "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"}};

constexpr std::array kParallelism{
    Export{
        "parallelism_config_dp_replicate_size",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"},
    Export{
        "parallelism_config_dp_shard_size",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE"},
    Export{"parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE"},
    Export{"parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE"},
    Export{"parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND"},
    Export{"parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE"},
    Export{"parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND"}};

class Exporter {
 public:
  explicit Exporter(const Settings& settings) : settings_(settings) {}

  template <class Rows>
  void add(const Rows& rows) {
    for (const Export& row : rows) add(row);
  }

  void add(const Export& row) {
    if (const auto found = value_for_python(row.key))
      set(row.variable, written(*found, row.style));
  }

  void set(std::string_view variable, std::string value) {
    variables_.insert_or_assign(std::string(variable), std::move(value));
  }

  std::map<std::string, std::string> finish() { return std::move(variables_); }

 private:
  // The given value, otherwise Accelerate's default.
  [[nodiscard]] std::optional<Resolved> value_for_python(
      std::string_view key) const {
    const Resolved* const found = settings_.find(key);
    if (settings_.is_given(key)) return *found;
    const detail::OptionSpec& spec = *detail::find_option(key);
    const std::string text(spec.default_for_python());
    if (text.empty()) return std::nullopt;
    return Resolved{
        detail::parse_option(spec, text),
        text,
        Origin::default_value,
        "default"};
  }

  static std::string written(const Resolved& found, Style style) {
    switch (style) {
      case Style::as_written:
        break;
      case Style::lower:
        return detail::to_lower(found.text);
      case Style::upper:
        return detail::to_upper(found.text);
      case Style::boolean:
        return std::get<bool>(found.value) ? "True" : "False";
      case Style::one_or_zero:
        if (found.origin == Origin::file) break;
        return std::get<bool>(found.value) ? "1" : "0";
    }
    // Accelerate parses number flags as floats: 1 becomes 1.0.
    const auto* const number = std::get_if<double>(&found.value);
    if (number != nullptr && found.origin == Origin::flag) {
      return detail::python_text(*number);
    }
    return found.text;
  }

  const Settings& settings_;
  std::map<std::string, std::string> variables_;
};

void add_fp8(Exporter& exporter, const Settings& settings) {
  for (const detail::OptionSpec& spec : detail::option_table()) {
    if (!spec.key.starts_with("fp8_") || spec.variable.empty()) continue;
    Style style = Style::as_written;
    if (spec.kind == detail::OptionKind::boolean) style = Style::boolean;
    if (spec.kind == detail::OptionKind::truth) style = Style::one_or_zero;
    exporter.add({spec.key, spec.variable, style});
  }
  const Resolved* const found = settings.find("fp8_override_linear_precision");
  std::vector<std::string> words = detail::split(found->text, ',');
  while (words.size() < 3) words.emplace_back("False");
  if (found->origin == Origin::flag) {
    for (std::string& word : words) {
      word =
          std::string(1, detail::parse_bool(word).value_or(false) ? '1' : '0');
    }
  } else if (
      found->origin == Origin::file && found->text.size() >= 3 &&
      found->text.find("True") == std::string::npos &&
      found->text.find("False") == std::string::npos) {
    // Accelerate iterates over the characters of a string from a file.
    for (std::size_t i = 0; i < 3; ++i) words[i] = found->text.substr(i, 1);
  }
  exporter.set("ACCELERATE_FP8_OVERRIDE_FPROP", words[0]);
  exporter.set("ACCELERATE_FP8_OVERRIDE_DGRAD", words[1]);
  exporter.set("ACCELERATE_FP8_OVERRIDE_WGRAD", words[2]);
}

void add_megatron(Exporter& exporter) {
  exporter.set("ACCELERATE_USE_MEGATRON_LM", "true");
  for (const detail::OptionSpec& spec : detail::option_table()) {
    if (spec.key.starts_with("megatron_lm_")) {
      exporter.add({spec.key, spec.variable});
    }
  }
}

void add_parallelism(Exporter& exporter, const Settings& settings) {
  exporter.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
  exporter.set("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1");
  exporter.add(kParallelism);
  if (*settings.integer("parallelism_config_cp_size") > 1) {
    exporter.add(
        {"parallelism_config_cp_comm_strategy",
         "PARALLELISM_CONFIG_CP_COMM_STRATEGY"});
  }
  if (*settings.integer("parallelism_config_sp_size") > 1) {
    exporter.set("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None");
    exporter.add(
        {"parallelism_config_sp_seq_length",
         "PARALLELISM_CONFIG_SP_SEQ_LENGTH"});
    exporter.add(
        {"parallelism_config_sp_seq_length_is_variable",
         "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"});
    exporter.add(
        {"parallelism_config_sp_attn_implementation",
         "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"});
  }
}

void add_deepspeed(
    Exporter& exporter,
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment) {
  exporter.set("ACCELERATE_USE_DEEPSPEED", "true");
  exporter.set(
      "ACCELERATE_CONFIG_DS_FIELDS",
      detail::to_lower(detail::join(decision.deepspeed_fields, ",")));
  exporter.add(kDeepSpeed);
  if (settings.is_given("gradient_accumulation_steps")) {
    exporter.add(
        {"gradient_accumulation_steps",
         "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  }
  std::vector<std::string> directories;
  for (const std::string& directory :
       detail::split(environment.get("PYTHONPATH").value_or(""), ':')) {
    if (!directory.empty()) directories.push_back(directory);
  }
  directories.push_back(std::filesystem::current_path());
  exporter.set("PYTHONPATH", detail::join(directories, ":"));
}

}  // namespace

std::map<std::string, std::string> python_variables(
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment) {
  Exporter exporter(settings);
  const bool is_deepspeed = decision.paradigm == Paradigm::deepspeed;
  exporter.set("ACCELERATE_MIXED_PRECISION", *settings.text("mixed_precision"));
  if (settings.boolean("debug")) exporter.set("ACCELERATE_DEBUG_MODE", "true");
  if (decision.gpu_ids != "all") {
    exporter.set("CUDA_VISIBLE_DEVICES", decision.gpu_ids);
  }
  if (*settings.text("mixed_precision") == "fp8") add_fp8(exporter, settings);
  const Resolved* const affinity = settings.find("enable_cpu_affinity");
  // DeepSpeed binds cores itself, unless the flag is given.
  if (std::get<bool>(affinity->value) &&
      (!is_deepspeed || affinity->origin == Origin::flag)) {
    exporter.set("ACCELERATE_CPU_AFFINITY", "1");
  }
  if (!is_deepspeed) exporter.add(kDynamo);
  switch (decision.paradigm) {
    case Paradigm::simple:
    case Paradigm::tpu:
      exporter.set("ACCELERATE_USE_CPU", decision.uses_cpu ? "True" : "False");
      if (decision.uses_cpu) {
        exporter.set("KMP_AFFINITY", "granularity=fine,compact,1,0");
        exporter.set("KMP_BLOCKTIME", "1");
      }
      break;
    case Paradigm::fsdp:
      exporter.set("ACCELERATE_USE_FSDP", "true");
      exporter.add(kFsdp);
      break;
    case Paradigm::megatron:
      add_megatron(exporter);
      break;
    case Paradigm::deepspeed:
      add_deepspeed(exporter, decision, settings, environment);
      break;
    case Paradigm::multi_device:
      break;
  }
  if (decision.uses_parallelism_config &&
      decision.paradigm != Paradigm::simple) {
    add_parallelism(exporter, settings);
  }
  return exporter.finish();
}

std::map<std::string, std::string> native_variables(
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment) {
  static constexpr std::array<std::string_view, 6> kDecided{
      "ACCELERATE_USE_FSDP",
      "ACCELERATE_USE_DEEPSPEED",
      "ACCELERATE_USE_MEGATRON_LM",
      "ACCELERATE_USE_PARALLELISM_CONFIG",
      "ACCELERATE_CONFIG_DS_FIELDS",
      "CUDA_VISIBLE_DEVICES"};
  auto variables = python_variables(decision, settings, environment);
  std::erase_if(variables, [&](const auto& entry) {
    const std::string& name = entry.first;
    if (std::find(kDecided.begin(), kDecided.end(), name) != kDecided.end())
      return false;
    if (name.starts_with("ACCELERATE_FP8_OVERRIDE_"))
      return !settings.is_given("fp8_override_linear_precision");
    const detail::OptionSpec* const spec =
        detail::find_option_of_variable(name);
    return spec == nullptr || !settings.is_given(spec->key);
  });
  return variables;
}

int python_threads(
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment,
    int physical_cores) {
  const auto given = settings.integer("num_cpu_threads_per_process");
  if (given && *given > 0) {
    return static_cast<int>(
        std::min<std::int64_t>(*given, std::numeric_limits<int>::max()));
  }
  if (!decision.shares_cores || decision.num_processes < 1) return 1;
  int here = std::max(decision.processes_here(), 1);
  for (const char* const name :
       {"MPI_LOCALNRANKS",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MV2_COMM_WORLD_LOCAL_SIZE"}) {
    const auto text = environment.get(name);
    const auto number = text ? detail::parse_int(*text) : std::nullopt;
    if (number && *number > 0) {
      here = static_cast<int>(
          std::min<long long>(*number, std::numeric_limits<int>::max()));
      break;
    }
  }
  return std::max(physical_cores / here, 1);
}

}  // namespace accelerate::cli
