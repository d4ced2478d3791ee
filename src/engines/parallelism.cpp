#include "engines/parallelism.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Config = ParallelismConfig;

struct Degree {
  std::string_view name;
  std::optional<int> Config::*field;
};

// A field that names one of several implementations.
struct Choice {
  std::string_view name;
  std::optional<std::string> Config::*field;
  std::vector<std::string> allowed;
};

void require_attention(
    const std::string& name,
    std::vector<std::string>& complaints) {
  const bool is_hub_kernel = name.find('/') != std::string::npos &&
      name.find("flash-attn") != std::string::npos;
  if (is_hub_kernel || name == "sdpa" || name == "flash_attention_2" ||
      name == "flash_attention_3") {
    return;
  }
  complaints.push_back(format(
      "[config] sp_attn_implementation is \"{}\", but must be sdpa, "
      "flash_attention_2, flash_attention_3 or a kernel of Hugging Face's "
      "hub such as kernels-community/flash-attn2",
      name));
}

// Fills in how sequences are sharded where ranks exchange attention heads.
void choose_sequences(
    Config& config,
    const Settings& settings,
    std::vector<std::string>& complaints) {
  if (!config.sp_seq_length_is_variable) {
    config.sp_seq_length_is_variable =
        settings.boolean("parallelism_config_sp_seq_length_is_variable");
  }
  // The length is only read if all sequences have one length, as in
  // Accelerate.
  const bool is_variable = *config.sp_seq_length_is_variable;
  constexpr std::string_view kLength = "parallelism_config_sp_seq_length";
  if (!is_variable && !config.sp_seq_length && settings.is_given(kLength)) {
    const auto text = *settings.text(kLength);
    const auto length = parse_int(text);
    if (length) config.sp_seq_length = static_cast<int>(*length);
    if (!length && text != "None") {
      complaints.push_back(format(
          "[config] sp_seq_length must be a number, but is \"{}\"", text));
    }
  }
  if (!is_variable && !config.sp_seq_length) {
    complaints.emplace_back(
        "[config] sp_seq_length_is_variable is false, so sp_seq_length must "
        "be set to the length of sequences");
  }
  constexpr std::string_view kAttention =
      "parallelism_config_sp_attn_implementation";
  if (settings.is_given(kAttention))
    require_attention(*settings.text(kAttention), complaints);
}

}  // namespace

ParallelismConfig resolve_parallelism(
    const ParallelismConfig& given,
    const Settings& settings) {
  ParallelismConfig config = given;
  std::vector<std::string> complaints;
  for (const Degree& row :
       {Degree{"dp_replicate_size", &Config::dp_replicate_size},
        Degree{"dp_shard_size", &Config::dp_shard_size},
        Degree{"tp_size", &Config::tp_size},
        Degree{"cp_size", &Config::cp_size},
        Degree{"sp_size", &Config::sp_size}}) {
    std::optional<int>& degree = config.*row.field;
    const std::string key = format("parallelism_config_{}", row.name);
    if (!degree) degree = static_cast<int>(settings.integer(key).value_or(1));
    if (*degree < 1) {
      complaints.push_back(format(
          "[config] {} must be at least 1, but is {}", row.name, *degree));
    }
  }
  std::vector<Choice> choices{
      {"cp_backend", &Config::cp_backend, {"torch"}},
      {"sp_backend", &Config::sp_backend, {"deepspeed"}}};
  if (*config.cp_size > 1 || config.cp_comm_strategy) {
    choices.push_back(
        {"cp_comm_strategy",
         &Config::cp_comm_strategy,
         {"allgather", "alltoall"}});
  }
  for (const Choice& choice : choices) {
    std::optional<std::string>& name = config.*choice.field;
    const std::string key = format("parallelism_config_{}", choice.name);
    if (!name) name = settings.text(key);
    if (std::ranges::find(choice.allowed, *name) == choice.allowed.end()) {
      complaints.push_back(format(
          "[config] {} is \"{}\", but must be {}",
          choice.name,
          *name,
          join(choice.allowed, " or ")));
    }
  }
  if (*config.sp_size > 1) choose_sequences(config, settings, complaints);
  if (*config.cp_size > 1 && *config.sp_size > 1) {
    complaints.push_back(format(
        "[config] cp_size is {} and sp_size is {}, but a sequence can only "
        "be sharded in one way; set one of them to 1",
        *config.cp_size,
        *config.sp_size));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  return config;
}

}  // namespace accelerate::detail
