#pragma once

#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::detail {

/// The settings that a job scheduler gives to a launcher that it starts once
/// per node: number of nodes, rank of this node, and address of rank 0. Reads
/// Slurm steps, Kubernetes training operators (`PET_*`, torchrun's variables)
/// and Open MPI, in this order. Empty unless one of them started one process
/// per node on several nodes.
Source source_from_scheduler(const Environment& environment);

}  // namespace accelerate::detail
