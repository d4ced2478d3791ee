#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/parallel_options.h>

#include "config/settings.h"
#include "modules/wrap_policy.h"

namespace accelerate::detail {

/// The engine whose settings describe the training run.
enum class Engine { none, fully_sharded, deepspeed, megatron_lm };

/// "FSDP's", "DeepSpeed's" ...
std::string_view possessive(Engine engine);

/// The ranks that share one set of parameters.
enum class ShardSpan {
  none,  ///< no sharding
  all,   ///< all ranks that other degrees leave over
  node,  ///< the ranks of each node
};

/// Decides whether the named module is chosen.
using ModulePredicate =
    std::function<bool(const std::string& name, const torch::nn::Module&)>;

/// The modules that become units.
struct ModuleSelection {
  WrapPolicy policy = {};
  /// Replaces the policy if set.
  ModulePredicate custom = nullptr;
};

/// Shards of a training run that are kept in files between uses.
struct DiskRequest {
  /// Moments, master weights and gradients of shards.
  bool keeps_optimizer_state = false;
  /// Shards of parameters.
  bool keeps_parameters = false;
  /// The directory of the files; each rank has files of its own there.
  std::string directory = {};
  /// The directory of the parameters' files, where it is another; empty:
  /// `directory`.
  std::string parameter_directory = {};
  /// The directories may be in memory (tmpfs, ramfs), where files save none.
  bool may_be_in_memory = false;
  /// Backward steps on each parameter as soon as its gradient is complete, if
  /// optimizer state is kept.
  bool steps_in_backward = false;
  /// Elements of one buffer: what one read or write, and one part of a step,
  /// moves at a time; 0: the library chooses.
  std::int64_t buffer_elements = 0;
  /// Number of buffers; 0: the library chooses.
  int buffer_count = 0;
  /// Reads of the next part of a step overlap the current part; likewise writes
  /// of the previous one.
  bool overlaps_reads = true;
  bool overlaps_writes = true;
  /// Elements of parameters that stay in host memory; unset: none beyond what
  /// the buffers hold.
  std::optional<std::int64_t> elements_in_memory = std::nullopt;
  /// Elements of this rank's parameters that are read ahead of those that are
  /// gathered next, in whole units, as far as buffers hold them; at least one
  /// unit.
  std::int64_t elements_ahead = 0;

  bool operator==(const DiskRequest&) const = default;
};

struct ShardingRequest {
  ShardSpan span = ShardSpan::none;
  ModuleSelection units = {};
  /// A regular expression; modules whose name it matches stay unsharded.
  std::optional<std::string> ignored_modules = std::nullopt;
  /// Parameters are sharded as well (ZeRO-3); otherwise only optimizer state,
  /// and gradients with `reduce_every_backward`.
  bool shard_parameters = true;
  /// Parameters are resharded after their last use in a forward, not only after
  /// backward.
  bool reshard_after_forward = true;
  /// If above 1, parameters stay sharded over groups of this many consecutive
  /// ranks between forward and backward.
  int reshard_group_size = 0;
  /// Gradients are reduced in every micro-step, so that none stay unsharded.
  bool reduce_every_backward = false;
  /// The next unit is gathered while the current one computes.
  bool prefetch_forward = true;
  bool prefetch_backward = true;
  /// Number of units that are gathered ahead.
  int prefetch_depth = 1;
  /// In backward, the next unit is gathered only once the current unit's
  /// gradients are complete.
  bool prefetch_after_gradients = false;
  /// Shards, their gradients and optimizer state stay in host memory.
  bool cpu_offload = false;
  /// What stays in files instead; unset: nothing.
  std::optional<DiskRequest> disk = std::nullopt;
  /// Only rank 0 creates initial values, or reads weights, for all ranks.
  bool make_on_rank_0 = false;
  bool read_on_rank_0 = false;
};

struct RecomputationRequest {
  ModuleSelection modules = {};
  CheckpointOptions options = CheckpointOptions();
  /// Number of consecutive modules that are recomputed together, so that only
  /// the inputs of the first one are kept.
  int modules_together = 1;
  /// Only the first `num_modules` modules of each rank are recomputed; unset:
  /// all.
  std::optional<int> num_modules = std::nullopt;
};

/// An engine's pipeline settings, which PipelineOptions replace; unset: the
/// pipeline's defaults.
struct PipelineRequest {
  std::optional<int> num_micro_batches = std::nullopt;
  /// Layers in each of a rank's interleaved stages.
  std::optional<int> layers_per_chunk = std::nullopt;
  /// Layers on the last rank.
  std::optional<int> layers_of_last_rank = std::nullopt;
};

/// How ranks along context exchange the inputs of attention.
struct SequenceRequest {
  /// Exchanges attention heads rather than keys and values (Ulysses).
  bool exchange_heads = false;
  /// Keys and values come from one rank at a time rather than from all at once.
  bool rotate_blocks = false;
  /// The length of all sequences; unset: any.
  std::optional<std::int64_t> length = std::nullopt;
};

/// How a model's experts are split, besides the degree of `expert`.
struct ExpertRequest {
  /// The ranks along `tensor` split each expert's MLP; otherwise all compute
  /// it.
  bool splits_over_tensor = true;
};

/// An engine's settings for the step; unset: the program decides.
struct StepRequest {
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  std::optional<double> gradient_clipping = std::nullopt;
  /// True if this clipping is the engine's default, not requested.
  bool clips_by_default = false;
  /// Micro-steps are weighted by their items where backward() is given their
  /// number; otherwise equally.
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

/// What checkpoints hold, and what is loaded from them.
struct CheckpointRequest {
  /// save_state() saves optimizers and schedules.
  bool saves_optimizers = true;
  /// load_state() loads optimizers and schedules; otherwise they stay as they
  /// are.
  bool loads_optimizers = true;
};

/// An "optimizer" or "scheduler" section of a DeepSpeed configuration.
struct DeepSpeedSection {
  std::string type;
  std::string params;  ///< JSON
};

/// A setting that is understood but has no counterpart here.
struct IgnoredSetting {
  std::string name;
  /// What to use instead here, or why nothing does the same; may be empty.
  std::string instead = {};
  /// "code", "environment variable X", "file run.yaml".
  std::string origin = {};
  /// Its key in the option table, where that differs from the name. Empty: the
  /// name is the key, or the table has no such option.
  std::string key = {};
  /// Takes effect when the schedule described by the engine's settings is
  /// prepared.
  bool belongs_to_schedule = false;
};

/// Lists settings of the code that have no effect.
class IgnoredInCode {
 public:
  explicit IgnoredInCode(std::vector<IgnoredSetting>& ignored)
      : ignored_(ignored) {}
  void operator()(bool is_void, std::string name, std::string instead = {})
      const {
    if (is_void)
      ignored_.push_back({std::move(name), std::move(instead), "code"});
  }

 private:
  std::vector<IgnoredSetting>& ignored_;
};

/// The request of a program and its launcher, whichever engine's settings
/// express it.
struct TrainingRequest {
  Engine engine = Engine::none;
  /// FSDP's fsdp_version; 0 for other engines.
  int fsdp_version = 0;
  /// Indexed by Axis; unset if not given.
  std::array<std::optional<int>, kNumAxes> degrees = {};
  /// True if code or launcher gives the degree of sharding; otherwise it is the
  /// number of ranks that other degrees leave over.
  bool shard_degree_is_given = false;
  /// Unset if no engine and no degree requests sharding.
  std::optional<ShardingRequest> sharding = std::nullopt;
  std::optional<RecomputationRequest> recomputation = std::nullopt;
  /// Which layers tensor parallelism splits; unset if not specified.
  std::optional<ParallelizePlan> parallelize_plan = std::nullopt;
  /// Models without a plan get one from infer_parallelize_plan(), as in engines
  /// that split models by themselves.
  bool infers_plan = false;
  /// Such a plan splits sequences between layers where it can.
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
  /// DeepSpeed's configuration as JSON; empty for other engines.
  std::string deepspeed_config = {};
  /// What the launcher gives, the code's options, and what the engine takes for
  /// options that neither gives, each with its origin.
  Settings settings = {};
  std::vector<IgnoredSetting> ignored = {};
  /// The launcher's settings that a DeepSpeed configuration overrules.
  std::vector<IgnoredSetting> overruled = {};
  /// Everything that contradicts itself or that this version cannot do.
  std::vector<std::string> complaints = {};

  [[nodiscard]] const std::optional<int>& degree(Axis axis) const {
    return degrees[static_cast<std::size_t>(axis)];
  }
  std::optional<int>& degree(Axis axis) {
    return degrees[static_cast<std::size_t>(axis)];
  }
};

/// The names of settings, each with its replacement.
std::vector<std::string> names_of(const std::vector<IgnoredSetting>& ignored);

}  // namespace accelerate::detail
