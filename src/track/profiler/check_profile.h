#pragma once

#include <accelerate/profiler.h>

namespace accelerate::detail {

/// Throws ConfigError for options that Accelerator::profile() would refuse.
void check_profile(const ProfileOptions& options);

}  // namespace accelerate::detail
