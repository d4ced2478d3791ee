#pragma once

#include <optional>
#include <utility>

#include <accelerate/parallel_options.h>

namespace accelerate {

/// Options of one of an Accelerator's models: a frozen teacher, say, that is
/// sharded while the student is replicated. An unset field follows
/// AcceleratorOptions or the launcher.
struct ModelOptions {
  /// Move the model to the accelerator's device. Unset: as
  /// AcceleratorOptions::device_placement says. On several ranks, a model can
  /// stay on another device only in evaluation_mode.
  std::optional<bool> device_placement = std::nullopt;
  /// For a model that is never trained: it is neither replicated nor sharded,
  /// keeps this rank's own weights (checkpoints have those of rank 0), and does
  /// not communicate in backward; autocast still applies. Excludes all options
  /// below.
  bool evaluation_mode = false;
  /// Numbers of replicas of this model and of ranks that shard each; the
  /// product is the number of ranks. If one is unset, it is derived from the
  /// other. If both are unset, those of the other models apply, unless the
  /// options below say otherwise.
  std::optional<int> replicate = std::nullopt;
  /// Number of ranks that shard each replica.
  std::optional<int> shard = std::nullopt;
  /// How the model is sharded, or, with ShardingStrategy::no_shard or
  /// DeepSpeed's stage 0, that it is not. Replaces everything that
  /// AcceleratorOptions say about this, whatever the engine; fields left unset
  /// are decided by the launcher. At most one of the two.
  std::optional<FullyShardedDataParallelOptions> fully_sharded = std::nullopt;
  /// DeepSpeed's settings for this model; instead of fully_sharded.
  std::optional<DeepSpeedOptions> deepspeed = std::nullopt;
  /// The layers of this model that `ParallelOptions::tensor` splits; an empty
  /// plan splits none.
  std::optional<ParallelizePlan> parallelize_plan = std::nullopt;
  /// Options for a replicated model.
  std::optional<ReplicateOptions> replicate_options = std::nullopt;
  /// Which modules recompute their activations. Unset: as for the other models.
  std::optional<ActivationCheckpointingOptions> activation_checkpointing =
      std::nullopt;
  /// See AcceleratorOptions::master_weights. Unset: as it says.
  std::optional<bool> master_weights = std::nullopt;
};

/// The result of with_options().
template <class M>
struct ModuleWithOptions {
  /// The module.
  M module;
  /// Its options.
  ModelOptions options = {};
};

/// For prepare(): a module (holder or `shared_ptr`) with its own options.
///
///     auto [student, teacher, optimizer] = accelerator.prepare(
///         net,
///         accelerate::with_options(
///             large, {.fully_sharded = FullyShardedDataParallelOptions()}),
///         sgd);
template <class M>
ModuleWithOptions<M> with_options(M module, ModelOptions options) {
  return {std::move(module), std::move(options)};
}

}  // namespace accelerate
