#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/parallel_options.h>

#include "modules/wrap_policy.h"

namespace accelerate::detail {

/// The engine whose settings describe a training.
enum class Engine { none, fully_sharded, deepspeed, megatron_lm };

/// The ranks that share one set of parameters.
enum class ShardSpan {
  none,  ///< no sharding
  all,   ///< all ranks that other degrees leave
  node,  ///< the ranks of each node
};

/// Decides whether a module, given with its name, is chosen.
using ModulePredicate =
    std::function<bool(const std::string& name, const torch::nn::Module&)>;

/// The modules that become units.
struct ModuleSelection {
  WrapPolicy policy = {};
  /// Replaces the policy if set.
  ModulePredicate custom = nullptr;
};

struct ShardingRequest {
  ShardSpan span = ShardSpan::none;
  ModuleSelection units = {};
  /// A regular expression; modules whose name it matches stay unsharded.
  std::optional<std::string> ignored_modules = std::nullopt;
  /// Parameters are sharded, too (ZeRO-3); else only optimizer state, and
  /// gradients with `reduce_every_backward`.
  bool shard_parameters = true;
  /// Parameters are resharded after their last use in a forward, not only after
  /// backward.
  bool reshard_after_forward = true;
  /// If above 1, parameters stay sharded over groups of this many consecutive
  /// ranks between forward and backward.
  int reshard_group_size = 0;
  /// Gradients are reduced in every micro-step, so that none stay unsharded.
  bool reduce_every_backward = false;
  /// The next unit is gathered while the present one computes.
  bool prefetch_forward = true;
  bool prefetch_backward = true;
  /// The number of units that are gathered ahead.
  int prefetch_depth = 1;
  /// In a backward, the next unit is gathered only when the present unit's
  /// gradients are complete.
  bool prefetch_after_gradients = false;
  /// Shards, their gradients and optimizer state stay in host memory.
  bool cpu_offload = false;
  /// Only rank 0 creates initial values, or reads weights, for all.
  bool make_on_rank_0 = false;
  bool read_on_rank_0 = false;
};

struct RecomputationRequest {
  ModuleSelection modules = {};
  CheckpointOptions options = CheckpointOptions();
  /// Number of consecutive modules that are recomputed together, so that only
  /// the inputs of the first one are kept.
  int modules_together = 1;
  /// Only the first ones, so many of each rank, are recomputed; unset: all.
  std::optional<int> num_modules = std::nullopt;
};

/// An engine's settings of pipelines, which PipelineOptions replace; unset: the
/// pipeline's defaults.
struct PipelineRequest {
  std::optional<int> num_micro_batches = std::nullopt;
  /// Layers of each of a rank's stages, which interleave.
  std::optional<int> layers_per_chunk = std::nullopt;
  /// Layers of the last rank.
  std::optional<int> layers_of_last_rank = std::nullopt;
};

/// How ranks along context exchange what attention needs.
struct SequenceRequest {
  /// Attention heads rather than keys and values (Ulysses).
  bool exchange_heads = false;
  /// Keys and values of one rank at a time rather than of all at once.
  bool rotate_blocks = false;
  /// The length of all sequences; unset: any.
  std::optional<std::int64_t> length = std::nullopt;
};

/// How the experts of a model are divided, besides the degree of `expert`.
struct ExpertRequest {
  /// The ranks along `tensor` split each expert's MLP; else all compute it.
  bool splits_over_tensor = true;
};

/// An engine's settings of the step; unset: the program decides.
struct StepRequest {
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  std::optional<double> gradient_clipping = std::nullopt;
  /// True if nobody asked for that clipping: it is the engine's default.
  bool clips_by_default = false;
  /// Micro-steps have the weight of their items where backward() is given
  /// their number; else equal ones.
  bool weighs_by_items = true;
};

struct PrecisionRequest {
  /// "no", "fp16" or "bf16".
  std::string mixed_precision = "no";
  /// The dtypes of a sharded model.
  MixedPrecisionPolicy sharded = {};
  /// The optimizer steps on fp32 copies of half-precision parameters.
  bool master_weights = false;
};

/// What checkpoints hold, and what is loaded of them.
struct CheckpointRequest {
  /// save_state() saves optimizers and schedules.
  bool saves_optimizers = true;
  /// load_state() loads optimizers and schedules; else they stay as they are.
  bool loads_optimizers = true;
};

/// An "optimizer" or "scheduler" section of a DeepSpeed configuration.
struct DeepSpeedSection {
  std::string type;
  std::string params;  ///< JSON
};

/// A setting that is understood and has no counterpart here.
struct IgnoredSetting {
  std::string name;
  /// What to use here in its place, or why nothing does the same; may be empty.
  std::string instead = {};
  /// "code", "environment variable X", "file run.yaml".
  std::string origin = {};
  /// Its key in the option table, where that differs from the name. Empty: the
  /// name is the key, or the table has none.
  std::string key = {};
  /// It has an effect once a schedule is prepared that the engine's settings
  /// describe.
  bool belongs_to_schedule = false;
};

/// The request of a program and its launcher, in whichever engine's settings.
struct TrainingRequest {
  Engine engine = Engine::none;
  /// FSDP's fsdp_version; 0 for other engines.
  int fsdp_version = 0;
  /// Indexed by Axis; unset if not given.
  std::array<std::optional<int>, kNumAxes> degrees = {};
  /// True if code or launcher gives the degree of sharding; else it is the
  /// number of ranks that other degrees leave.
  bool shard_degree_is_given = false;
  /// Unset if no engine and no degree requests sharding.
  std::optional<ShardingRequest> sharding = std::nullopt;
  std::optional<RecomputationRequest> recomputation = std::nullopt;
  /// Which layers tensor parallelism splits; unset if nobody says.
  std::optional<ParallelizePlan> parallelize_plan = std::nullopt;
  /// Models for which nobody says get a plan by infer_parallelize_plan(), as
  /// engines that split models by themselves do.
  bool infers_plan = false;
  /// Such a plan divides sequences between layers where it can.
  bool divides_sequences = false;
  SequenceRequest sequence = {};
  ExpertRequest experts = {};
  PipelineRequest pipeline = {};
  StepRequest step = {};
  PrecisionRequest precision = {};
  CheckpointRequest checkpoints = {};
  std::optional<DeepSpeedSection> optimizer = std::nullopt;
  std::optional<DeepSpeedSection> scheduler = std::nullopt;
  /// DeepSpeed's options, each with its value; unset for other engines.
  std::optional<DeepSpeedOptions> deepspeed = std::nullopt;
  /// Its configuration as JSON; empty for other engines.
  std::string deepspeed_config = {};
  std::vector<IgnoredSetting> ignored = {};
  /// Everything that contradicts itself or that this version cannot do.
  std::vector<std::string> complaints = {};

  [[nodiscard]] const std::optional<int>& degree(Axis axis) const {
    return degrees[static_cast<std::size_t>(axis)];
  }
  std::optional<int>& degree(Axis axis) {
    return degrees[static_cast<std::size_t>(axis)];
  }
};

/// The names of settings, each with the setting that replaces it.
std::vector<std::string> names_of(const std::vector<IgnoredSetting>& ignored);

}  // namespace accelerate::detail
