#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/model_options.h>
#include <accelerate/parallel.h>

#include "config/environment.h"
#include "config/settings.h"
#include "parallel/shard.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// What decides besides the mesh.
struct TechniqueOptions {
  ParallelOptions parallel = {};
  ShardOptions shard = {};
  std::optional<ActivationCheckpointingOptions> activation_checkpointing =
      std::nullopt;
  bool master_weights = false;
};

struct ParallelPlan {
  std::array<int, kNumAxes> degrees{};
  TechniqueOptions techniques = {};
  /// Only rank 0 makes models' values, or reads them.
  bool makes_on_rank_0 = false;
  bool reads_on_rank_0 = false;
  /// What DeepSpeed's words say of a step, if they do.
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  std::optional<double> gradient_clipping = std::nullopt;
  std::string deepspeed_config = {};
  /// Settings that were given and do nothing.
  std::vector<std::string> ignored = {};
};

/// Who asks.
struct PlanRequest {
  ParallelOptions parallel = {};
  bool master_weights = false;
  /// "no", "fp16" or "bf16".
  std::string mixed_precision = "no";
  int num_ranks = 1;
  int num_local_ranks = 1;
  at::Device device = at::kCPU;
};

/// Degrees of every axis: from the request, else from the launcher, else 1,
/// with replicate, or shard where that was asked for without a number, taking
/// all ranks that the rest leave. Runs every technique's validation; throws one
/// ConfigError with all complaints, touching nothing.
ACCELERATE_API ParallelPlan make_plan(
    const PlanRequest& request,
    const Settings& settings,
    const Environment& environment);

/// What a plan is made of, kept for later ones.
struct PlanSources {
  PlanRequest request = {};
  Settings settings = {};
  Environment environment = {};
};

/// The plan of a model with options of its own; `base`: that of the others.
/// Throws as make_plan does.
ACCELERATE_API ParallelPlan make_model_plan(
    const ModelOptions& options,
    const PlanSources& sources,
    const ParallelPlan& base);

/// The techniques that mesh and options ask for, in order of application, for
/// one model.
std::vector<std::unique_ptr<Strategy>> make_strategies(
    const Mesh& mesh,
    const TechniqueOptions& options);

}  // namespace accelerate::detail
