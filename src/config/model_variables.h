#pragma once

#include "config/environment.h"

namespace accelerate::detail {

/// Whether models made without memory have no memory for buffers either
/// (ACCELERATE_INIT_INCLUDE_BUFFERS; false if it is unset). Throws ConfigError
/// for a value that is not a boolean.
bool init_includes_buffers(const Environment& environment);

}  // namespace accelerate::detail
