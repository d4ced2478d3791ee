#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/parallel.h>

#include "engines/fp8_recipe.h"
#include "engines/training_request.h"
#include "parallel/shard/shard.h"
#include "parallel/strategy_list.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// The number of ranks along each axis of the grid, indexed by Axis.
using Degrees = std::array<int, kNumAxes>;

/// A technique added in code rather than listed in the table. It allows degrees
/// above 1 on its axis, and is applied before those in the table.
struct AddedTechnique {
  std::string name;  // the strategy's name, also in checkpoints
  Axis axis = Axis::tensor;
  std::function<std::unique_ptr<Strategy>(const Mesh&)> make;
};

/// Options of the techniques, one field each.
struct TechniqueOptions {
  ReplicateOptions replicate = {};
  ShardOptions shard = {};
  std::optional<RecomputationRequest> activation_checkpointing = std::nullopt;
  bool master_weights = false;
  /// Unset: inferred from each model if `infers_plan`; otherwise nothing is
  /// split.
  std::optional<ParallelizePlan> parallelize_plan = std::nullopt;
  bool infers_plan = false;
  /// True if an inferred plan divides sequences between layers where possible.
  bool divides_sequences = false;
  std::optional<Float8Request> float8 = std::nullopt;
  ExpertRequest experts = {};
  std::vector<AddedTechnique> added = {};
  /// Set for a pipeline stage: the whole model. Policies that compare a layer
  /// with others look at it here, so that all stages decide alike. Tensors of
  /// other stages are meta tensors.
  std::shared_ptr<const torch::nn::Module> whole_model = nullptr;
};

struct ParallelPlan {
  Degrees degrees{};
  TechniqueOptions techniques = {};
  /// True for a single process that would shard if there were several; it
  /// rejects what they would reject.
  bool would_shard = false;
  /// True if freed memory of large CPU tensors is kept while a model is alive.
  bool keeps_freed_blocks = false;
  /// True if only rank 0 initializes models, or reads their weights.
  bool makes_on_rank_0 = false;
  bool reads_on_rank_0 = false;
  /// Settings that were given but have no effect: ReplicateOptions beside
  /// sharding, and float8 gathers without it.
  std::vector<IgnoredSetting> ignored = {};

  [[nodiscard]] int degree(Axis axis) const {
    return degrees[static_cast<std::size_t>(axis)];
  }
};

/// The inputs of make_plan.
struct PlanRequest {
  TrainingRequest training = {};
  ReplicateOptions replicate = {};
  /// True for a model that inherits `replicate` from the Accelerator, where it
  /// may be meant for other models.
  bool replicate_is_inherited = false;
  bool master_weights = false;
  /// Set if mixed_precision is fp8.
  std::optional<Float8Request> float8 = std::nullopt;
  /// AcceleratorOptions::keep_freed_blocks.
  std::optional<bool> keep_freed_blocks = std::nullopt;
  /// True if the user tuned glibc's heap, which is then left alone unless
  /// keep_freed_blocks says otherwise.
  bool heap_is_tuned = false;
  int num_ranks = 1;
  int num_local_ranks = 1;
  at::Device device = at::kCPU;
  std::vector<AddedTechnique> added = {};
};

/// Chooses the degrees and resolves the options. Runs every
/// technique's validation; throws one ConfigError with all complaints, the
/// request's included. Has no side effects.
ParallelPlan make_plan(const PlanRequest& request);

/// The names of all techniques, in the order of application.
std::vector<std::string_view> technique_names();

/// Returns the plan's strategies, in order of application, for `model` on
/// `mesh`, which has the plan's degrees.
StrategyList make_strategies(
    const Mesh& mesh,
    const ParallelPlan& plan,
    const torch::nn::Module& model);

}  // namespace accelerate::detail
