#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/deepspeed.h>
#include <accelerate/fully_sharded.h>
#include <accelerate/megatron_lm.h>
#include <accelerate/parallelism_config.h>

namespace accelerate {

/// The ways in which ranks can differ, outermost first: neighbouring ranks
/// share a tensor group, the farthest apart are pipeline stages.
enum class Axis { pipeline, replicate, shard, context, tensor };

inline constexpr int kNumAxes = 5;

constexpr std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kNumAxes> names{
      "pipeline", "replicate", "shard", "context", "tensor"};
  return names[static_cast<std::size_t>(axis)];
}

/// How gradients travel between the copies of a model.
enum class CommHook {
  none,
  /// As fp16 or bf16, half the bytes. fp16 overflows above 65504: scale losses.
  fp16,
  bf16,
  /// As two thin factors of each gradient matrix, with error feedback (Vogels
  /// et al., "PowerSGD: Practical Low-Rank Gradient Compression for
  /// Distributed Optimization", NeurIPS 2019).
  power_sgd,
  /// The same of each bucket as one square matrix: faster, less exact.
  batched_power_sgd,
};

/// What a hook computes and sends in.
enum class CommWrapper { none, fp16, bf16 };

/// Options of CommHook::power_sgd and CommHook::batched_power_sgd.
struct PowerSGDOptions {
  /// Columns of the factors. More: more bytes, less error.
  int matrix_approximation_rank = 1;
  /// Plain averaging before that step: early gradients compress badly.
  std::int64_t start_power_sgd_iter = 1000;
  /// Matrices that would not shrink by more than this factor travel whole.
  /// Not used by batched_power_sgd.
  double min_compression_rate = 2.0;
  /// Add to each gradient what compression left out of the one before.
  bool use_error_feedback = true;
  /// Start from the factors of the step before.
  bool warm_start = true;
  /// Above 0: orthogonalise by Gram-Schmidt with this added to each norm,
  /// faster and less exact; 0: by a QR decomposition.
  double orthogonalization_epsilon = 0;
  /// Seed of the first factors; the same on all ranks.
  std::uint64_t random_seed = 0;
};

/// How copies of a model on several ranks are kept equal.
struct ReplicateOptions {
  /// Gradients travel in buckets of about this size, as soon as each is full.
  /// Larger: fewer, longer messages; smaller: more overlap with backward.
  std::int64_t bucket_bytes = 25 << 20;
  /// The first bucket is smaller, so that sending starts early.
  std::int64_t first_bucket_bytes = 1 << 20;
  /// Set it when some parameters take no part in some steps. Costs a walk over
  /// the graph before every backward, and the outputs of the model must be
  /// visitable (nested.h).
  bool find_unused_parameters = false;
  /// The set of used parameters never changes: found once, in the first step.
  bool static_graph = false;
  /// Gradients are views of the buckets, which saves their memory once more;
  /// then do not detach_() them.
  bool gradient_as_bucket_view = false;
  /// Send rank 0's buffers (running statistics) to all after each step.
  bool broadcast_buffers = true;
  /// Compression of gradients between ranks.
  CommHook comm_hook = CommHook::none;
  /// Runs the hook in a narrower dtype; needs a `comm_hook`.
  CommWrapper comm_wrapper = CommWrapper::none;
  PowerSGDOptions power_sgd = {};
};

/// Degrees of parallelism; their product is the number of ranks.
struct ParallelOptions {
  // Degrees.

  /// Copies of the model. Unset: the launcher's value, else every rank that the
  /// other degrees leave.
  std::optional<int> replicate = std::nullopt;
  /// Ranks that split parameters, gradients and optimizer state.
  std::optional<int> shard = std::nullopt;
  /// Ranks that split each layer.
  std::optional<int> tensor = std::nullopt;
  /// Ranks that split the sequence.
  std::optional<int> context = std::nullopt;
  /// Pipeline stages.
  std::optional<int> pipeline = std::nullopt;

  // How each technique works.

  ReplicateOptions replicate_options = {};
  /// How `shard` splits. Given without `shard`: over all ranks that the other
  /// degrees leave, or with a hybrid strategy over those of a machine.
  std::optional<FullyShardedDataParallelOptions> fully_sharded = std::nullopt;

  // The same as other engines spell it.

  /// The same in DeepSpeed's words; not beside `fully_sharded`.
  std::optional<DeepSpeedOptions> deepspeed = std::nullopt;
  /// The degrees above in the words of Accelerate's ParallelismConfig. Where
  /// both say one, they must say the same.
  std::optional<ParallelismConfig> parallelism_config = std::nullopt;
  /// Degrees and how a step is done in Megatron-LM's words; not beside the
  /// three before.
  std::optional<MegatronLMOptions> megatron_lm = std::nullopt;

  // Activations.

  /// Compute activations again in backward, with any of the above or none.
  /// Unset: as `fully_sharded` says.
  std::optional<ActivationCheckpointingOptions> activation_checkpointing =
      std::nullopt;
};

}  // namespace accelerate
