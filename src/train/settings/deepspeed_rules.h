#pragma once

#include <accelerate/detail/prepare_items.h>

#include "train/session.h"

namespace accelerate::detail {

/// Throws ConfigError if the objects given to prepare() contradict the
/// session's DeepSpeed configuration: optimizers and schedules made in code
/// beside its sections for them, or loaders of other batch sizes. Completes the
/// "auto" batch sizes of the configuration. Does nothing without DeepSpeed.
void apply_deepspeed_rules(Session& session, const PrepareRequest& request);

}  // namespace accelerate::detail
