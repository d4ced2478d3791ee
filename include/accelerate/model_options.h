#pragma once

#include <optional>
#include <utility>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/deepspeed.h>
#include <accelerate/fully_sharded.h>
#include <accelerate/parallel.h>

namespace accelerate {

/// What one model has of its own where an Accelerator prepares several: a
/// frozen teacher, say, that is split while the student is copied. A field left
/// unset is as AcceleratorOptions say, or the launcher.
struct ModelOptions {
  /// Copies of this model, and ranks that split each; the product is the number
  /// of ranks. One left unset takes what the other leaves. Both unset: as for
  /// the other models, unless the words below ask for something else.
  std::optional<int> replicate = std::nullopt;
  std::optional<int> shard = std::nullopt;
  /// How it is split, or with ShardingStrategy::no_shard that it is not. In
  /// place of all that AcceleratorOptions say of it, in whichever words; of
  /// fields left unset the launcher decides. DeepSpeed's stage 0 splits nothing
  /// either. Not both.
  std::optional<FullyShardedDataParallelOptions> fully_sharded = std::nullopt;
  std::optional<DeepSpeedOptions> deepspeed = std::nullopt;
  /// Of a model that is copied.
  std::optional<ReplicateOptions> replicate_options = std::nullopt;
  std::optional<ActivationCheckpointingOptions> activation_checkpointing =
      std::nullopt;
  std::optional<bool> master_weights = std::nullopt;
};

/// What with_options() returns.
template <class M>
struct ModuleWithOptions {
  M module;
  ModelOptions options = {};
};

/// For prepare(): a module (holder or `shared_ptr`) with options of its own.
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
