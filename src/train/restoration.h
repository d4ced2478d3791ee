#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

#include "checkpoint/load.h"
#include "checkpoint/source.h"
#include "params/optimizer_state.h"

namespace accelerate::detail {

struct Session;
struct PreparedModel;
struct PreparedOptimizer;

/// A model's tensors: where they are, and where they go.
struct ModelLoad {
  StoredTensors saved;
  std::vector<Destination> destinations;
};

struct OptimizerLoad {
  std::string part;
  PreparedOptimizer* optimizer = nullptr;
  NameOfParameter name_of;
  OptimizerState state;
  std::vector<std::pair<std::string, at::Tensor>> masters;
};

/// What a checkpoint will do to a session, and why it should not.
struct LoadPlan {
  std::vector<ModelLoad> models;
  std::vector<OptimizerLoad> optimizers;
  std::vector<std::string> complaints;
};

/// Those that free_memory() has not let go.
std::vector<PreparedModel*> models_of(const Session& session);

/// Compares everything; changes nothing. `load_weights`: one for each model.
LoadPlan plan_load(
    const Session& session,
    const CheckpointSource& checkpoint,
    const std::vector<bool>& load_weights,
    const MatchRules& rules);

/// Does it. `rank_state`: of this rank, if it is to be loaded.
void carry_out(
    LoadPlan& plan,
    Session& session,
    const CheckpointSource& checkpoint,
    const std::optional<StateDict>& rank_state,
    const MatchRules& rules);

}  // namespace accelerate::detail
