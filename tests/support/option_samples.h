#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/text/text.h"
#include "config/options/option_table.h"

namespace accelerate::testing {

/// A value that an option accepts and that is not its default; empty if the
/// option has only one choice.
inline std::string sample_of(const detail::OptionSpec& spec) {
  static const std::map<std::string_view, std::string> texts{
      {"fsdp_sharding_strategy", "SHARD_GRAD_OP"},
      {"fsdp_reshard_after_forward", "false"},
      {"fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"},
      {"fsdp_backward_prefetch", "BACKWARD_POST"},
      {"fsdp_state_dict_type", "LOCAL_STATE_DICT"},
      {"offload_optimizer_device", "cpu"},
      {"offload_param_device", "cpu"},
      {"megatron_lm_attention_backend", "false"},
      {"parallelism_config_sp_seq_length", "128"},
      {"deepspeed_config_file", R"({"zero_optimization": {"stage": 1}})"},
      {"cpu_affinity", "auto"},
      {"log_levels", "comm=debug"},
      {"tee", "3"}};
  const auto text = texts.find(spec.key);
  if (text != texts.end()) return text->second;
  switch (spec.kind) {
    case detail::OptionKind::boolean:
    case detail::OptionKind::truth:
      return detail::parse_bool(spec.default_value).value_or(false) ||
              detail::parse_bool(spec.default_for_python()).value_or(false)
          ? "false"
          : "true";
    case detail::OptionKind::integer:
      return "2";
    case detail::OptionKind::number:
      return "0.5";
    case detail::OptionKind::choice:
      for (const std::string& choice : detail::split(spec.limits, '|')) {
        if (!detail::is_default(spec, choice)) return choice;
      }
      break;
    case detail::OptionKind::text:
      return "x";
  }
  return {};
}

}  // namespace accelerate::testing
