#pragma once

#include <filesystem>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/weights.h>

namespace accelerate::detail {

struct PreparedModel;

// What Accelerator's functions of these purposes do.
ACCELERATE_API void save_prepared(
    const PreparedModel& model,
    const std::filesystem::path& folder,
    const SaveModelOptions& options);
ACCELERATE_API void load_prepared(
    PreparedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options);
ACCELERATE_API WeightList
weights_of(const PreparedModel& model, const StateDictOptions& options);
ACCELERATE_API std::vector<WeightPart> parts_of(const PreparedModel& model);

}  // namespace accelerate::detail
