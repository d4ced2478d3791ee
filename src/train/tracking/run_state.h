#pragma once

#include <functional>
#include <memory>

#include <accelerate/world.h>

#include "checkpoint/components/component.h"
#include "comm/mesh.h"
#include "track/run_tracking.h"

namespace accelerate::detail {

/// A journal's description of this process, except the run's name.
std::function<JournalSessionInfo()> describe_process(
    const World& world,
    const Mesh& mesh);

/// Records in checkpoints which run they belong to and how far it had logged,
/// and continues that run's journal when they are loaded. `tracking` must
/// outlive it.
std::shared_ptr<CheckpointComponent> run_component(RunTracking& tracking);

}  // namespace accelerate::detail
