#pragma once

#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::detail {

/// What a job's scheduler says to a launcher that it starts once on each
/// machine: how many machines there are, which this is, and where rank 0 is.
/// Reads Slurm's steps, Kubernetes training operators (`PET_*`, torchrun's
/// variables) and Open MPI, in this order; nothing where none of them started
/// one process a machine on several machines.
Source source_from_scheduler(const Environment& environment);

}  // namespace accelerate::detail
