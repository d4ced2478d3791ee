#pragma once

#include "cli/launch/decision/launch_decision.h"
#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::cli {

/// The settings, with the engine that the kind of launch chooses.
detail::Settings with_engine(
    const LaunchDecision& decision,
    const detail::Settings& settings);

/// Throws ConfigError if shards of a program of this library would be kept in
/// directories that cannot hold files on this machine. What the program itself
/// says is not known here; ranks check the directories again.
void require_offload_directories(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment);

}  // namespace accelerate::cli
