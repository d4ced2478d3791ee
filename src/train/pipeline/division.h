#pragma once

#include <cstddef>
#include <vector>

#include <accelerate/accelerator.h>
#include <accelerate/pipeline.h>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// The options, completed by an engine's pipeline settings.
PipelineOptions complete(
    PipelineOptions options,
    const Accelerator& accelerator,
    const std::vector<PipelineLayer>& layers);

/// The schedule of a full batch. Throws ConfigError if no schedule can do it.
PipelineSchedule schedule_of(const PipelineOptions& options, int num_ranks);

/// The first layer of each stage.
std::vector<std::size_t> begins_of(
    const PipelineOptions& options,
    const Accelerator& accelerator,
    const std::vector<PipelineLayer>& layers,
    const PipelineSchedule& schedule);

}  // namespace accelerate::detail
