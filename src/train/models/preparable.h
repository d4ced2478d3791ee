#pragma once

#include "train/session.h"

namespace accelerate::detail {

/// Throws ConfigError for everything that prepare() refuses whatever the plans
/// are, before anything is changed.
void require_preparable(const Session& session, const PrepareRequest& request);

}  // namespace accelerate::detail
