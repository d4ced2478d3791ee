#pragma once

#include <optional>

#include <accelerate/parallel.h>

#include "config/settings.h"

namespace accelerate::detail {

/// `options` with the degrees that a ParallelismConfig, or Megatron-LM's words,
/// ask for, as ParallelOptions' own; both from code or launcher. Throws one
/// ConfigError with everything that contradicts, or that this version cannot
/// do.
ParallelOptions in_own_words(
    const ParallelOptions& options,
    const Settings& settings);

}  // namespace accelerate::detail
