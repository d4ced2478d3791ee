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

// How Accelerate writes an option of this kind, section or key.
Style style_of(const detail::OptionSpec& spec) {
  if (spec.key == "dynamo_backend") return Style::upper;
  for (const std::string_view key :
       {"fsdp_reshard_after_forward",
        "gradient_clipping",
        "offload_optimizer_device",
        "offload_param_device"}) {
    if (spec.key == key) return Style::lower;
  }
  if (spec.kind == detail::OptionKind::boolean) return Style::boolean;
  if (spec.kind != detail::OptionKind::truth) return Style::as_written;
  if (spec.section == "fp8_config") return Style::one_or_zero;
  return spec.section == "fsdp_config" || spec.section == "deepspeed_config"
      ? Style::lower
      : Style::as_written;
}

class Exporter {
 public:
  explicit Exporter(const Settings& settings) : settings_(settings) {}

  // All options of the section that have a variable.
  void add_section(std::string_view section) {
    for (const detail::OptionSpec& spec : detail::option_table()) {
      if (spec.section == section && !spec.variable.empty()) add(spec);
    }
  }

  void add(std::string_view key) { add(*detail::find_option(key)); }

  void set(std::string_view variable, std::string value) {
    variables_.insert_or_assign(std::string(variable), std::move(value));
  }

  std::map<std::string, std::string> finish() { return std::move(variables_); }

 private:
  void add(const detail::OptionSpec& spec) {
    if (const auto found = value_for_python(spec))
      set(spec.variable, written(*found, style_of(spec)));
  }

  // The given value, otherwise Accelerate's default.
  [[nodiscard]] std::optional<Resolved> value_for_python(
      const detail::OptionSpec& spec) const {
    if (settings_.is_given(spec.key)) return *settings_.find(spec.key);
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
  exporter.add_section("fp8_config");
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

void add_parallelism(Exporter& exporter, const Settings& settings) {
  exporter.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
  exporter.set("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1");
  for (const char* const key :
       {"parallelism_config_dp_replicate_size",
        "parallelism_config_dp_shard_size",
        "parallelism_config_tp_size",
        "parallelism_config_cp_size",
        "parallelism_config_cp_backend",
        "parallelism_config_sp_size",
        "parallelism_config_sp_backend"})
    exporter.add(key);
  if (*settings.integer("parallelism_config_cp_size") > 1)
    exporter.add("parallelism_config_cp_comm_strategy");
  if (*settings.integer("parallelism_config_sp_size") > 1) {
    exporter.set("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None");
    exporter.add("parallelism_config_sp_seq_length");
    exporter.add("parallelism_config_sp_seq_length_is_variable");
    exporter.add("parallelism_config_sp_attn_implementation");
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
  exporter.add_section("deepspeed_config");
  if (settings.is_given("gradient_accumulation_steps"))
    exporter.add("gradient_accumulation_steps");
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
    exporter.set(decision.devices_variable, decision.gpu_ids);
  }
  if (*settings.text("mixed_precision") == "fp8") add_fp8(exporter, settings);
  const Resolved* const affinity = settings.find("enable_cpu_affinity");
  // DeepSpeed binds cores itself, unless the flag is given.
  if (std::get<bool>(affinity->value) &&
      (!is_deepspeed || affinity->origin == Origin::flag)) {
    exporter.set("ACCELERATE_CPU_AFFINITY", "1");
  }
  if (!is_deepspeed) exporter.add_section("dynamo_config");
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
      exporter.add_section("fsdp_config");
      break;
    case Paradigm::megatron:
      exporter.set("ACCELERATE_USE_MEGATRON_LM", "true");
      exporter.add_section("megatron_lm_config");
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
  const std::array<std::string_view, 6> decided{
      "ACCELERATE_USE_FSDP",
      "ACCELERATE_USE_DEEPSPEED",
      "ACCELERATE_USE_MEGATRON_LM",
      "ACCELERATE_USE_PARALLELISM_CONFIG",
      "ACCELERATE_CONFIG_DS_FIELDS",
      decision.devices_variable};
  auto variables = python_variables(decision, settings, environment);
  std::erase_if(variables, [&](const auto& entry) {
    const std::string& name = entry.first;
    if (std::find(decided.begin(), decided.end(), name) != decided.end())
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
