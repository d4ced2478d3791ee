#pragma once

#include <string>
#include <vector>

#include <accelerate/pipeline_layers.h>

namespace accelerate::detail {

/// Returns the split points of Accelerate's device map. It keeps room for the
/// largest layer on the first device, so it can leave ranks without layers; in
/// that case all get shares as equal as possible.
std::vector<std::string> automatic_split(
    const PipelineLayers& layers,
    std::vector<std::string> no_split_module_classes,
    int num_ranks);

std::vector<std::string> layer_names(const PipelineLayers& layers);

}  // namespace accelerate::detail
