#pragma once

#include <accelerate/detail/prepare_items.h>

#include "train/session/session.h"

namespace accelerate::detail {

/// Throws ConfigError if the objects passed to prepare() contradict the
/// session's DeepSpeed configuration: optimizers or schedules made in code
/// although it has sections for them, or loaders with other batch sizes. Fills
/// in the configuration's "auto" batch sizes. Does nothing without DeepSpeed.
void apply_deepspeed_rules(Session& session, const PrepareRequest& request);

}  // namespace accelerate::detail
