#pragma once

#include <string>
#include <vector>

#include <accelerate/exported_model.h>
#include <accelerate/pipeline_layers.h>

namespace accelerate::detail {

/// The modules of an exported program that PipelineOptions::split_points is
/// chosen from if a program leaves it empty.
std::vector<std::string> exported_split_points(const ExportedModel& model);

/// An exported program as layers: one from each split point to the next. Throws
/// what ProgramStages::divide() throws.
PipelineLayers exported_layers(
    const ExportedModel& model,
    const std::vector<std::string>& split_points);

}  // namespace accelerate::detail
