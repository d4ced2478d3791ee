#pragma once

#include <vector>

#include "checkpoint/components/component.h"
#include "checkpoint/components/models.h"

namespace accelerate::detail {

struct PreparedModel;
struct Session;

/// The models that free_memory() has not released.
std::vector<PreparedModel*> live_models(const Session& session);

/// A model as checkpoints see it.
PlacedModel placed(const PreparedModel& model);

/// What the listed components are for.
enum class CheckpointUse { save, load };

/// Every component of a session that has state, in the order in which states
/// are loaded. `with_weights` has one entry per live model, false to leave it
/// out; CheckpointRequest leaves out optimizers and schedules. A feature with
/// state adds itself to `CheckpointState::components`.
ComponentList components_of(
    Session& session,
    const std::vector<bool>& with_weights,
    CheckpointUse use);

}  // namespace accelerate::detail
