#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/parallel_options.h>

#include "config/environment.h"
#include "config/settings.h"
#include "engines/megatron_lm/megatron_args.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// "FSDP's", "DeepSpeed's" ...
std::string_view possessive(Engine engine);

// Each of these reads the settings of one engine. They fill in everything
// except degrees, and throw ConfigError.

TrainingRequest read_fully_sharded(
    const std::optional<FullyShardedDataParallelOptions>& given,
    const Settings& settings,
    std::string_view mixed_precision);

/// The precision that the program or its launcher asks for.
struct RequestedPrecision {
  std::string_view name;
  /// True if neither asks for one, so that the engine may choose.
  bool is_open = false;
};

TrainingRequest read_deepspeed(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const Environment& environment,
    const RequestedPrecision& precision);

/// `found` is resolve_megatron_lm(given, settings).
TrainingRequest read_megatron_lm(
    const MegatronArguments& given,
    const MegatronLMOptions& found,
    const Settings& settings);

/// The degrees of all axes that code or launcher give, in ParallelOptions' own
/// fields, in `config` or Megatron-LM's options, as resolved; null if they could
/// not be or are not in use. Contradictions are added to `complaints`.
std::array<std::optional<int>, kNumAxes> read_degrees(
    const ParallelOptions& options,
    const Settings& settings,
    const ParallelismConfig* config,
    const MegatronLMOptions* megatron,
    std::vector<std::string>& complaints);

/// Puts the code's degrees and its ParallelismConfig into the settings in force.
void record_degrees(Settings& settings, const ParallelOptions& options);

/// The policy that FSDP's fields describe; `fsdp_version` 2 counts sizes as
/// Accelerate does, 1 as PyTorch does.
WrapPolicy wrap_policy_of(
    std::optional<AutoWrapPolicy> policy,
    const std::vector<std::string>& class_names,
    std::int64_t min_num_params,
    int fsdp_version);

/// How ranks along context exchange the inputs of attention.
SequenceRequest read_sequence_request(const ParallelismConfig& found);

/// What a ParallelismConfig sets for degrees of 1, or asks for although it does
/// not exist here; `found` is `given` as resolved.
std::vector<IgnoredSetting> parallelism_without_effect(
    const ParallelismConfig& given,
    const ParallelismConfig& found);

/// The dtypes in which a sharded model computes and reduces.
MixedPrecisionPolicy sharded_precision(const MixedPrecisionPolicy& policy);

}  // namespace accelerate::detail
