#pragma once

#include <filesystem>

#include <accelerate/weights.h>

#include "checkpoint/components/models.h"
#include "checkpoint/run/checkpoints.h"

namespace accelerate::detail {

/// Writes a prepared model's weights on the first rank of each directory. All
/// ranks call it, and all throw CheckpointError if one of them cannot write.
void save_weights(
    CheckpointState& checkpoints,
    const PlacedModel& model,
    const std::filesystem::path& directory,
    const SaveModelOptions& options);

/// Returns a prepared model's weights by name. If gathers_weights(), all ranks
/// must call it.
WeightList collect_weights(
    CheckpointState& checkpoints,
    const PlacedModel& model,
    const StateDictOptions& options);

/// True if collect_weights() needs all ranks: for full weights of a sharded
/// model.
bool gathers_weights(const PlacedModel& model, const StateDictOptions& options);

/// Loads files into a prepared model; with `reads_on_rank_0` only rank 0 reads
/// them and sends the other ranks their tensors. All ranks call it. If the
/// files do not fit, all ranks throw CheckpointError and nothing is changed.
void load_weights(
    CheckpointState& checkpoints,
    const PlacedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options,
    bool reads_on_rank_0);

}  // namespace accelerate::detail
