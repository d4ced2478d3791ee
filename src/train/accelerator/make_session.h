#pragma once

#include <memory>
#include <vector>

#include <accelerate/accelerator_options.h>

#include "parallel/plan/plan.h"

namespace accelerate::detail {

struct Session;

/// Joins the world, resolves the options there, and makes the parts of an
/// Accelerator; tests add techniques that the library lacks. The session
/// reports settings without effect when its last handle is destroyed, unless a
/// step or end_training() has done so. Throws ConfigError and DistributedError.
/// Collective.
std::shared_ptr<Session> make_session(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added = {});

}  // namespace accelerate::detail
