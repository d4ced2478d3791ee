#pragma once

#include <string_view>

#include <accelerate/megatron_lm.h>

#include "config/settings.h"
#include "engines/megatron_lm/megatron_args.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The options, with the defaults of those for which the launcher has none.
/// Throws one ConfigError for everything that Megatron-LM would not understand.
MegatronLMOptions check_megatron_lm(MegatronArguments given);

/// The same, with every field filled in for which the launcher's `settings`
/// have a value or a default.
MegatronLMOptions resolve_megatron_lm(
    const MegatronArguments& given,
    const Settings& settings);

/// The request that the options make: everything except degrees; `found` is
/// resolve_megatron_lm(given, settings).
TrainingRequest read_megatron_lm(
    const MegatronArguments& given,
    const MegatronLMOptions& found,
    const Settings& settings);

/// The launcher's key for a field; empty if it has none.
std::string_view megatron_key(std::string_view name);

}  // namespace accelerate::detail
