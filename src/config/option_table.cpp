#include "config/option_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

using enum OptionKind;

constexpr std::array kOptions{
    OptionSpec{
        "num_processes",
        "",
        "--num_processes",
        "",
        integer,
        "1",
        "1..",
        "processes on this machine; each is one rank"},
    OptionSpec{
        "use_cpu",
        "",
        "--cpu",
        "ACCELERATE_USE_CPU",
        boolean,
        "false",
        "",
        "stay on the CPU even where there is an accelerator"},
    OptionSpec{
        "device",
        "",
        "",
        "ACCELERATE_TORCH_DEVICE",
        text,
        "",
        "",
        "the device of every rank, such as cpu or cuda:1, instead of the one "
        "chosen by local rank"},
    OptionSpec{
        "mixed_precision",
        "",
        "--mixed_precision",
        "ACCELERATE_MIXED_PRECISION",
        choice,
        "no",
        "no|fp16|bf16|fp8",
        "precision of the forward pass"},
    OptionSpec{
        "gradient_accumulation_steps",
        "",
        "--gradient_accumulation_steps",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        integer,
        "1",
        "1..",
        "micro-batches whose gradients are added before the optimizer steps"},
    OptionSpec{
        "main_process_ip",
        "",
        "--main_process_ip",
        "",
        text,
        "127.0.0.1",
        "",
        "address of the machine with rank 0"},
    OptionSpec{
        "main_process_port",
        "",
        "--main_process_port",
        "",
        integer,
        "0",
        "0..65535",
        "port where rank 0 keeps the key-value store; 0 takes a free one"},
    OptionSpec{
        "num_cpu_threads_per_process",
        "",
        "--num_cpu_threads_per_process",
        "OMP_NUM_THREADS",
        integer,
        "0",
        "0..",
        "threads that one rank computes with; 0 shares the cores out among the "
        "ranks"},
    OptionSpec{
        "timeout_seconds",
        "",
        "--timeout_seconds",
        "ACCELERATE_TIMEOUT_SECONDS",
        number,
        "1800",
        "0..",
        "how long a collective waits for a silent peer"},
    OptionSpec{
        "debug",
        "",
        "--debug",
        "ACCELERATE_DEBUG_MODE",
        boolean,
        "false",
        "",
        "check before each collective that all ranks call the same one with "
        "the same shapes"},
    OptionSpec{
        "log_level",
        "",
        "--log_level",
        "ACCELERATE_LOG_LEVEL",
        choice,
        "warning",
        "debug|info|warning|error|off",
        "which of the library's messages are shown"},
    OptionSpec{
        "parallelism_config_dp_replicate_size",
        "parallelism_config",
        "--parallelism_config_dp_replicate_size",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
        integer,
        "",
        "1..",
        "copies of the model; unset takes all ranks the other degrees leave"},
    OptionSpec{
        "parallelism_config_dp_shard_size",
        "parallelism_config",
        "--parallelism_config_dp_shard_size",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE",
        integer,
        "1",
        "1..",
        "ranks that split parameters, gradients and optimizer state"},
    OptionSpec{
        "parallelism_config_tp_size",
        "parallelism_config",
        "--parallelism_config_tp_size",
        "PARALLELISM_CONFIG_TP_SIZE",
        integer,
        "1",
        "1..",
        "ranks that split each layer"},
    OptionSpec{
        "parallelism_config_cp_size",
        "parallelism_config",
        "--parallelism_config_cp_size",
        "PARALLELISM_CONFIG_CP_SIZE",
        integer,
        "1",
        "1..",
        "ranks that split the sequence"},
    OptionSpec{
        "parallelism_config_pp_size",
        "parallelism_config",
        "--parallelism_config_pp_size",
        "PARALLELISM_CONFIG_PP_SIZE",
        integer,
        "1",
        "1..",
        "pipeline stages"},
};

constexpr std::array<std::string_view, 31> kWithoutEffect{
    "compute_environment",
    "distributed_type",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "fp8_config",
    "deepspeed_config",
    "fsdp_config",
    "megatron_lm_config",
    "mpirun_config",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "command_file",
    "commands",
    "tpu_vm",
    "tpu_env",
    "dynamo_config",
    "fp16",
    "parallelism_config_cp_comm_strategy",
    "parallelism_config_cp_backend",
    "parallelism_config_sp_size",
    "parallelism_config_sp_backend",
    "parallelism_config_sp_seq_length",
    "dynamo_backend"};

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

Range range_of(std::string_view limits) {
  Range range;
  const std::size_t dots = limits.find("..");
  if (dots == std::string_view::npos) return range;
  if (const auto low = parse_double(limits.substr(0, dots))) range.low = *low;
  if (const auto high = parse_double(limits.substr(dots + 2)))
    range.high = *high;
  return range;
}

std::string allowed(const OptionSpec& spec) {
  switch (spec.kind) {
    case boolean:
      return "yes or no";
    case text:
      return "a text";
    case choice: {
      std::string words = join(split(spec.limits, '|'), ", ");
      return "one of " + words;
    }
    case integer:
    case number:
      break;
  }
  const Range range = range_of(spec.limits);
  std::string out = spec.kind == integer ? "a whole number" : "a number";
  if (range.low > -std::numeric_limits<double>::infinity()) {
    out += concat(" of at least ", range.low);
  }
  if (range.high < std::numeric_limits<double>::infinity()) {
    out += concat(" and at most ", range.high);
  }
  return out;
}

bool within(const OptionSpec& spec, double value) {
  const Range range = range_of(spec.limits);
  return value >= range.low && value <= range.high;
}

std::optional<OptionValue> try_parse(
    const OptionSpec& spec,
    std::string_view text) {
  switch (spec.kind) {
    case boolean:
      if (const auto value = parse_bool(text)) return *value;
      break;
    case integer:
      if (const auto value = parse_int(text);
          value && within(spec, static_cast<double>(*value))) {
        return std::int64_t{*value};
      }
      break;
    case number:
      if (const auto value = parse_double(text); value && within(spec, *value))
        return *value;
      break;
    case choice: {
      const std::string word = to_lower(text);
      const std::vector<std::string> words = split(spec.limits, '|');
      if (std::find(words.begin(), words.end(), word) != words.end())
        return word;
      break;
    }
    case OptionKind::text:
      return std::string(text);
  }
  return std::nullopt;
}

}  // namespace

std::span<const OptionSpec> option_table() { return kOptions; }

const OptionSpec* find_option(std::string_view key) {
  const auto found = std::find_if(
      kOptions.begin(), kOptions.end(), [&](const OptionSpec& spec) {
        return spec.key == key;
      });
  return found == kOptions.end() ? nullptr : &*found;
}

std::span<const std::string_view> keys_without_effect() {
  return kWithoutEffect;
}

OptionValue parse_option(const OptionSpec& spec, std::string_view text) {
  if (auto value = try_parse(spec, trim(text))) return *value;
  throw ConfigError(concat(
      "[config] ", spec.key, " is \"", text, "\"; it must be ", allowed(spec)));
}

std::string format_option(const OptionValue& value) {
  struct Formatter {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return concat(v); }
    std::string operator()(const std::string& v) const { return v; }
  };
  return std::visit(Formatter{}, value);
}

std::string options_page() {
  std::string page =
      "# Options\n\n"
      "Every setting has one name in the config file and, where given, a flag "
      "of `accelerate-cpp launch` and an\n"
      "environment variable. Code wins over the command line, the command line "
      "over the environment, the\n"
      "environment over the file, the file over the default; every resolved "
      "value knows which of them it came from.\n\n"
      "This page is printed by `accelerate-cpp options`; a test keeps the two "
      "equal.\n\n"
      "| key | flag | variable | value | default | meaning |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  const auto code = [](std::string_view word) {
    return word.empty() ? std::string() : concat("`", word, "`");
  };
  for (const OptionSpec& spec : kOptions) {
    page += concat(
        "| ",
        code(spec.key),
        " | ",
        code(spec.flag),
        " | ",
        code(spec.variable),
        " | ",
        allowed(spec),
        " | ",
        code(spec.default_value),
        " | ",
        spec.help,
        " |\n");
  }
  page +=
      "\nIn the file, keys that begin with `parallelism_config_` live in the "
      "map `parallelism_config`, as in\n"
      "Accelerate's files. Accelerate's other keys are read, and a warning "
      "names those that have no effect yet;\n"
      "a key that neither knows is an error that names the nearest one.\n";
  return page;
}

}  // namespace accelerate::detail
