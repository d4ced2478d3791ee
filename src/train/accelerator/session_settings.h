#pragma once

#include <vector>

#include <accelerate/accelerator_options.h>
#include <accelerate/world.h>

#include "config/settings.h"
#include "train/accelerator/decisions.h"

namespace accelerate::detail {

struct SettingsInForce {
  Settings settings;
  std::vector<IgnoredSetting> ignored;
};

/// The settings from code, launcher and variables, with what was chosen where
/// they leave something open, and the settings that an engine ignores.
SettingsInForce settings_in_force(
    const AcceleratorOptions& options,
    const Decisions& decisions,
    const World& world);

}  // namespace accelerate::detail
