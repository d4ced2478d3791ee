#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/parallel_options.h>

#include "config/environment.h"
#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

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

TrainingRequest read_megatron_lm(
    const MegatronLMOptions& given,
    const Settings& settings);

/// The degrees of all axes that code or launcher give, in ParallelOptions' own
/// fields or an engine's. Contradictions are added to `complaints`.
std::array<std::optional<int>, kNumAxes> read_degrees(
    const ParallelOptions& options,
    const Settings& settings,
    std::vector<std::string>& complaints);

bool uses_megatron_lm(const ParallelOptions& options, const Settings& settings);

/// The policy that FSDP's fields describe; `fsdp_version` 2 counts sizes as
/// Accelerate does, 1 as PyTorch does.
WrapPolicy wrap_policy_of(
    std::optional<AutoWrapPolicy> policy,
    const std::vector<std::string>& class_names,
    std::int64_t min_num_params,
    int fsdp_version);

/// How ranks along context exchange the inputs of attention. Throws ConfigError
/// for settings of ParallelismConfig that contradict each other.
SequenceRequest read_sequence_request(
    const ParallelOptions& options,
    const Settings& settings);

/// What a ParallelismConfig sets for degrees of 1, or asks for although it does
/// not exist here. Throws ConfigError as resolve_parallelism() does.
std::vector<IgnoredSetting> parallelism_without_effect(
    const ParallelismConfig& given,
    const Settings& settings);

/// The dtypes in which a sharded model computes and reduces.
MixedPrecisionPolicy sharded_precision(const MixedPrecisionPolicy& policy);

}  // namespace accelerate::detail
