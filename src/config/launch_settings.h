#pragma once

#include <array>

#include "config/settings.h"

namespace accelerate::detail {

/// The settings that a rank gets from outside the code: the launcher's
/// decisions, then the environment, then the defaults. Only the launcher reads
/// files.
inline Settings launch_settings(const Environment& environment) {
  const std::array sources{
      source_from_handover(environment), source_from_environment(environment)};
  Settings settings = resolve(sources);
  mark_reported_by_launcher(environment, settings);
  return settings;
}

}  // namespace accelerate::detail
