#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/megatron_lm.h>

namespace accelerate::detail {

/// Arguments of Megatron-LM's schedules for which MegatronLMOptions has no
/// field.
struct MegatronScheduleArguments {
  std::optional<double> lr_warmup_init = std::nullopt;
  std::optional<std::int64_t> lr_wsd_decay_iters = std::nullopt;
  std::optional<std::int64_t> lr_wsd_decay_samples = std::nullopt;
  std::optional<std::string> lr_wsd_decay_style = std::nullopt;
};

/// The contents of `other_megatron_args`.
struct MegatronArguments {
  /// The options, with the fields that it gives replaced.
  MegatronLMOptions options;
  MegatronScheduleArguments schedule = {};
  /// The names of fields of `schedule` that it sets.
  std::vector<std::string> schedule_names = {};
  /// The names that have no meaning here.
  std::vector<std::string> unknown = {};
  std::vector<std::string> complaints = {};
};

MegatronArguments read_megatron_arguments(const MegatronLMOptions& given);

}  // namespace accelerate::detail
