#pragma once

#include <memory>
#include <vector>

#include "checkpoint/component.h"
#include "checkpoint/components/models.h"
#include "train/session.h"

namespace accelerate::detail {

/// The models that free_memory() has not let go.
std::vector<PreparedModel*> live_models(const Session& session);

/// A model as checkpoints see it.
PlacedModel placed(const PreparedModel& model);

/// The one list of what has state in a session, in the order in which states
/// are taken over; models only where `with_weights`, one for each live model,
/// says so. A feature with a state adds itself to `Checkpoints::components`.
ComponentList components_of(
    Session& session,
    const std::vector<bool>& with_weights);

}  // namespace accelerate::detail
