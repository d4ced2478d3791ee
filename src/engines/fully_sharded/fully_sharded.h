#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/fully_sharded.h>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// `given` with every unset field filled in, from the launcher's `settings` or
/// else the default. A field that its version does not have is left unset.
/// `mixed_precision` ("no", "fp16", "bf16", "fp8") determines the precision
/// policy if none is given. Throws one ConfigError with everything that is
/// wrong.
FullyShardedDataParallelOptions resolve_fully_sharded(
    const FullyShardedDataParallelOptions& given,
    const Settings& settings,
    std::string_view mixed_precision = "no");

/// The policy for a dtype as Accelerate names it: "fp32", "fp16", "bf16", or
/// "fp8", which gathers weights in bf16.
MixedPrecisionPolicy policy_named(std::string_view name, int fsdp_version);

/// The request that the options make: everything except degrees. Throws
/// ConfigError.
TrainingRequest read_fully_sharded(
    const std::optional<FullyShardedDataParallelOptions>& given,
    const Settings& settings,
    std::string_view mixed_precision);

/// The policy that FSDP's fields describe; `fsdp_version` 2 counts sizes as
/// Accelerate does, 1 as PyTorch does.
WrapPolicy wrap_policy_of(
    std::optional<AutoWrapPolicy> policy,
    const std::vector<std::string>& class_names,
    std::int64_t min_num_params,
    int fsdp_version);

/// The dtypes in which a sharded model computes and reduces.
MixedPrecisionPolicy sharded_precision(const MixedPrecisionPolicy& policy);

}  // namespace accelerate::detail
