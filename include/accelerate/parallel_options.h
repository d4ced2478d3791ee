#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/deepspeed.h>
#include <accelerate/fully_sharded.h>
#include <accelerate/megatron_lm.h>
#include <accelerate/parallelism_config.h>
#include <accelerate/tensor_parallel.h>

namespace accelerate {

/// The axes along which ranks can differ, outermost first: consecutive ranks
/// share a `tensor` group, ranks along `context` a sequence, and those farthest
/// apart are pipeline stages. `expert` folds into `replicate` and `shard`: it
/// divides the ranks along these two once more, for the parameters of experts
/// (experts.h).
enum class Axis { pipeline, replicate, shard, expert, context, tensor };

/// Number of axes.
inline constexpr int kNumAxes = 6;

/// "pipeline", "replicate", "shard", "expert", "context" or "tensor".
constexpr std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kNumAxes> names{
      "pipeline", "replicate", "shard", "expert", "context", "tensor"};
  return names[static_cast<std::size_t>(axis)];
}

/// How gradients are compressed between the replicas of a model.
enum class CommHook {
  /// Gradients travel as they are.
  none,
  /// Cast to fp16 or bf16, half the bytes. fp16 overflows above 65504: scale
  /// losses.
  fp16,
  /// Cast to bf16, half the bytes; the range of fp32.
  bf16,
  /// Sent as two thin factors of each gradient matrix, with error feedback
  /// (Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for
  /// Distributed Optimization", NeurIPS 2019).
  power_sgd,
  /// PowerSGD of each bucket as one square matrix: faster, less accurate.
  batched_power_sgd,
};

/// The dtype in which a hook computes and communicates: `fp16`, `bf16`, or the
/// gradients' own (`none`).
enum class CommWrapper { none, fp16, bf16 };

/// Options of CommHook::power_sgd and CommHook::batched_power_sgd.
struct PowerSGDOptions {
  /// Number of columns of the factors. More: more bytes, less error, more time
  /// to compute them.
  int matrix_approximation_rank = 1;
  /// The step at which compression begins; early gradients compress poorly.
  /// Before it, gradients travel as they are, so short runs gain nothing.
  std::int64_t start_power_sgd_iter = 1000;
  /// Matrices that would not shrink by more than this factor are sent
  /// uncompressed. Higher: more bytes, less error. Not used by
  /// batched_power_sgd.
  double min_compression_rate = 2.0;
  /// Add to each gradient what compression lost of the previous one. Costs
  /// memory for a copy of the gradients; without it, what is lost stays lost.
  bool use_error_feedback = true;
  /// Start from the factors of the previous step, which fit better than random
  /// ones. Costs the memory of one factor of each matrix.
  bool warm_start = true;
  /// Above 0: orthogonalise by Gram-Schmidt with this added to each norm,
  /// faster and less accurate; 0: by a QR decomposition.
  double orthogonalization_epsilon = 0;
  /// Seed of the initial factors; the same on all ranks.
  std::uint64_t random_seed = 0;
};

struct BucketHook;  // bucket_hook.h

/// How replicas of a model on several ranks are kept identical.
///
/// A sharded model has replicas only if `replicate` is above 1 as well as
/// `shard`. Only bucket_bytes, broadcast_buffers and the comm_hooks fp16 and
/// bf16 then apply to averaging over them; another hook or a wrapper is an
/// error, and the other options are listed as ignored. Sharded models always
/// allow unused parameters.
struct ReplicateOptions {
  // Buckets.

  /// Gradients are reduced in buckets of about this size, each as soon as it is
  /// full. Larger: fewer, longer messages; smaller: more overlap with backward.
  std::int64_t bucket_bytes = 25 << 20;
  /// Size of the first bucket that is sent (with find_unused_parameters, of the
  /// last); smaller, so that communication starts early.
  std::int64_t first_bucket_bytes = 1 << 20;

  // Which parameters are used.

  /// Set this if some parameters are not used in some steps; ranks may use
  /// different ones, but each at least one. Costs a walk over the loss's graph
  /// before every backward that averages, and an all-reduce of one number per
  /// parameter after it.
  bool find_unused_parameters = false;
  /// The set of used parameters never changes, so it is found once, in the
  /// first step, which does not overlap communication. Cheaper than
  /// find_unused_parameters. If a rank then uses a parameter more often than in
  /// the first step, its backward throws ConfigError.
  bool static_graph = false;

  // Memory, and buffers.

  /// Gradients are views of the buckets, which saves a second set of them, and
  /// copies. Then do not detach_() them, nor keep them for later: the next step
  /// overwrites them.
  bool gradient_as_bucket_view = false;
  /// Broadcast rank 0's buffers (running statistics) after each step. Set it to
  /// false if all are constants, to save the messages; otherwise ranks keep
  /// different statistics.
  bool broadcast_buffers = true;

  // How gradients are communicated.

  /// Compression of gradients between ranks, for steps that wait for the
  /// network. Costs accuracy, and time to compress.
  CommHook comm_hook = CommHook::none;
  /// Runs the hook in a narrower dtype, which halves what PowerSGD or your own
  /// hook sends of fp32 gradients; needs a `comm_hook` or `bucket_hook`.
  CommWrapper comm_wrapper = CommWrapper::none;
  /// Options of the PowerSGD hooks; `comm_state_option` in Accelerate.
  PowerSGDOptions power_sgd = {};
  /// Your own reduction of each bucket, instead of a `comm_hook`
  /// (bucket_hook.h). Shared by the models that are prepared with these
  /// options.
  std::shared_ptr<const BucketHook> bucket_hook = nullptr;
};

/// Degrees of parallelism; their product, without `expert`, is the number of
/// ranks. Unless its field says otherwise, an unset degree is the launcher's or
/// the engine's, else 1.
struct ParallelOptions {
  // Degrees.

  /// Number of replicas of the model. Unset: the launcher's value, else every
  /// rank that the other degrees leave.
  std::optional<int> replicate = std::nullopt;
  /// Number of ranks over which parameters, gradients and optimizer state are
  /// sharded.
  std::optional<int> shard = std::nullopt;
  /// Number of ranks over which each layer is split, as `parallelize_plan`
  /// says. They communicate in every such layer: best within a machine.
  std::optional<int> tensor = std::nullopt;
  /// Number of ranks over which the sequence is sharded.
  std::optional<int> context = std::nullopt;
  /// Number of ranks of a pipeline, which divide the layers (pipeline.h).
  std::optional<int> pipeline = std::nullopt;
  /// Number of ranks over which the experts of each ExpertLayer are divided
  /// (experts.h). It takes no ranks of its own: it divides `replicate` x
  /// `shard`, and is a divisor or a multiple of `shard`. Ranks that hold the
  /// same experts average their gradients, or shard them.
  std::optional<int> expert = std::nullopt;

  // How each technique works.

  /// How replicas average their gradients.
  ReplicateOptions replicate_options = {};
  /// How the model is sharded. Without `shard`, over all ranks that the other
  /// degrees leave, or, with a hybrid strategy, over those of a node.
  std::optional<FullyShardedDataParallelOptions> fully_sharded = std::nullopt;

  /// Which layers `tensor` splits, and how. Required if `tensor` is above 1,
  /// unless the degree is DeepSpeed's (`tensor_parallel.autotp_size`) or
  /// Megatron-LM's: then unset means what infer_parallelize_plan() chooses. An
  /// empty plan splits none. Without effect on one tensor-parallel rank, so
  /// that a program can always give it.
  std::optional<ParallelizePlan> parallelize_plan = std::nullopt;

  // The same settings in the spelling of other engines.

  /// DeepSpeed's spelling; not together with `fully_sharded`.
  std::optional<DeepSpeedOptions> deepspeed = std::nullopt;
  /// The degrees above as Accelerate's ParallelismConfig spells them. A degree
  /// given in both must be the same in both.
  std::optional<ParallelismConfig> parallelism_config = std::nullopt;
  /// Degrees and settings of the training step in Megatron-LM's spelling; not
  /// together with the three above.
  std::optional<MegatronLMOptions> megatron_lm = std::nullopt;

  // Activations.

  /// Recompute activations in backward, with any of the above or none. Unset:
  /// decided by `fully_sharded`.
  std::optional<ActivationCheckpointingOptions> activation_checkpointing =
      std::nullopt;
};

}  // namespace accelerate
