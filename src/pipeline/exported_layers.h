#pragma once

#include <string>
#include <vector>

#include <accelerate/exported_model.h>
#include <accelerate/pipeline_layers.h>

namespace accelerate::detail {

/// Names the modules at which an exported program can be split, for a program
/// that leaves PipelineOptions::split_points empty.
std::vector<std::string> exported_split_points(const ExportedModel& model);

/// Returns an exported program as layers: one from each split point to the
/// next. Throws what ProgramStages::divide() throws.
PipelineLayers exported_layers(
    const ExportedModel& model,
    const std::vector<std::string>& split_points);

}  // namespace accelerate::detail
