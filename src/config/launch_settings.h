#pragma once

#include <array>

#include "config/settings.h"

namespace accelerate::detail {

/// What a rank knows from outside the code: the launcher's decisions, then the
/// environment, then the defaults. Files are the launcher's business.
inline Settings launch_settings(const Environment& environment) {
  const std::array sources{
      source_from_handover(environment), source_from_environment(environment)};
  return resolve(sources);
}

}  // namespace accelerate::detail
