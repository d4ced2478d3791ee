#pragma once

#include <accelerate/profiler.h>

namespace accelerate::detail {

/// Throws ConfigError for a schedule that records nothing, and for activities
/// that this process cannot record.
void check_profile(const ProfileOptions& options);

/// True if a profile with these options records the activity. Of `cuda`, says
/// nothing about whether there is a device if activities are unset.
bool records(const ProfileOptions& options, ProfilerActivity activity);

}  // namespace accelerate::detail
