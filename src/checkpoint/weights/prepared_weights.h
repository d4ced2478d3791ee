#pragma once

#include <filesystem>
#include <vector>

#include <accelerate/model.h>
#include <accelerate/weights.h>

#include "checkpoint/checkpoints.h"
#include "checkpoint/components/models.h"

namespace accelerate::detail {

/// Writes a prepared model's weights, on the first rank of each directory. All
/// ranks call it; all throw CheckpointError if one cannot write.
void save_weights(
    Checkpoints& checkpoints,
    const PlacedModel& model,
    const std::filesystem::path& directory,
    const SaveModelOptions& options);

/// A prepared model's weights by name. All ranks call it if full weights of a
/// split model are asked for.
WeightList collect_weights(
    Checkpoints& checkpoints,
    const PlacedModel& model,
    const StateDictOptions& options);

/// True where collect_weights() needs all ranks.
bool gathers_weights(const PlacedModel& model, const StateDictOptions& options);

/// Fills a prepared model from files, which rank 0 reads for all if
/// `reads_on_rank_0`. All ranks call it; if the files do not fit, all throw
/// CheckpointError and nothing has changed.
void load_weights(
    Checkpoints& checkpoints,
    const PlacedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options,
    bool reads_on_rank_0);

}  // namespace accelerate::detail
