#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/parallel.h>

#include "engines/training_request.h"
#include "parallel/degrees.h"
#include "parallel/shard/shard.h"
#include "parallel/strategy_list.h"

namespace accelerate::detail {

/// A technique that the table does not have, given in code. It makes the degree
/// of its axis possible, and is applied before those of the table.
struct AddedTechnique {
  std::string name;  // its strategy's, also in checkpoints
  Axis axis = Axis::tensor;
  std::function<std::unique_ptr<Strategy>(const Mesh&)> make;
};

/// What decides besides the mesh.
struct TechniqueOptions {
  ReplicateOptions replicate = {};
  ShardOptions shard = {};
  std::optional<RecomputationRequest> activation_checkpointing = std::nullopt;
  bool master_weights = false;
  std::vector<AddedTechnique> added = {};
};

struct ParallelPlan {
  Degrees degrees{};
  TechniqueOptions techniques = {};
  /// Freed memory of large CPU tensors is kept while a model lives.
  bool keeps_freed_blocks = false;
  /// Only rank 0 makes models' values, or reads them.
  bool makes_on_rank_0 = false;
  bool reads_on_rank_0 = false;

  [[nodiscard]] int degree(Axis axis) const {
    return degree_along(degrees, axis);
  }
};

/// The inputs of make_plan.
struct PlanRequest {
  TrainingRequest training = {};
  ReplicateOptions replicate = {};
  bool master_weights = false;
  /// AcceleratorOptions::keep_freed_blocks.
  std::optional<bool> keep_freed_blocks = std::nullopt;
  /// The user tuned glibc's heap, which is then left alone unless
  /// keep_freed_blocks says otherwise.
  bool heap_is_tuned = false;
  int num_ranks = 1;
  int num_local_ranks = 1;
  at::Device device = at::kCPU;
  std::vector<AddedTechnique> added = {};
};

/// Degrees of every axis: those of the request, else 1, with replicate, or
/// shard where that was asked for without a number, taking all ranks that the
/// rest leave. Runs every technique's validation; throws one ConfigError with
/// all complaints, the request's included, touching nothing.
ACCELERATE_API ParallelPlan make_plan(const PlanRequest& request);

/// The techniques that the plan asks for, in order of application, for one
/// model on `mesh`, which has the plan's degrees.
StrategyList make_strategies(const Mesh& mesh, const ParallelPlan& plan);

}  // namespace accelerate::detail
