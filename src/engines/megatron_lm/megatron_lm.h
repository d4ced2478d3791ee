#pragma once

#include <accelerate/megatron_lm.h>

#include "config/settings.h"

namespace accelerate::detail {

/// `given` with every unset field filled in, from the launcher's `settings` or
/// else the default, after `other_megatron_args` has replaced what it names;
/// `consumed_samples` is extended to three entries. Throws ConfigError for a
/// degree below 1, and for a field without effect that Megatron-LM would not
/// understand either.
MegatronLMOptions resolve_megatron_lm(
    const MegatronLMOptions& given,
    const Settings& settings);

}  // namespace accelerate::detail
