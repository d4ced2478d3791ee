#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// What is sharded over the ranks, and when full parameters are resharded.
enum class ShardingStrategy {
  /// Shard parameters, gradients and optimizer state; parameters are gathered
  /// for each use (ZeRO-3).
  full_shard = 1,
  /// Gradients and optimizer state; parameters stay unsharded from a forward to
  /// the end of its backward (ZeRO-2).
  shard_grad_op,
  /// Nothing: every rank has a replica.
  no_shard,
  /// full_shard among the ranks of a shard group, replicas across groups.
  hybrid_shard,
  /// shard_grad_op among the ranks of a shard group, replicas across groups.
  hybrid_shard_zero2,
};

/// When the backward pass gathers its next unit.
enum class BackwardPrefetch {
  /// Gather it when it is needed: slowest, but saves the memory of one unit.
  none,
  /// Gather it before the gradients of the current unit are computed: fastest.
  backward_pre,
  /// Gather it after them: less memory.
  backward_post,
};

/// The form in which weights are saved.
enum class StateDictType {
  /// Full weights, saved by rank 0.
  full_state_dict = 1,
  /// The shards of each rank, loadable on the same number of ranks only.
  local_state_dict,
  /// The shards of each rank, loadable on any number of ranks.
  sharded_state_dict,
};

/// Which modules become units, whose parameters are gathered together.
/// Parameters that no unit holds belong to the root unit.
enum class AutoWrapPolicy {
  /// No modules: all parameters are in the root unit.
  no_wrap,
  /// The modules of the named classes.
  transformer_based_wrap,
  /// The modules that hold at least a given number of parameters.
  size_based_wrap,
};

/// A floating-point dtype that a MixedPrecisionPolicy can name: `fp32`, `fp16`
/// or `bf16`.
enum class FloatType { fp32, fp16, bf16 };

/// The dtypes in which a sharded model computes and communicates. Unset: the
/// parameter's own dtype.
struct MixedPrecisionPolicy {
  /// Dtype of unsharded parameters; shards keep their own dtype.
  std::optional<FloatType> param_dtype = std::nullopt;
  /// Dtype in which gradients are reduced. Unset: param_dtype.
  std::optional<FloatType> reduce_dtype = std::nullopt;
  /// Dtype of floating-point buffers, such as running statistics.
  std::optional<FloatType> buffer_dtype = std::nullopt;
  /// Dtype of floating-point outputs of the model's forward.
  std::optional<FloatType> output_dtype = std::nullopt;
  /// Version 2: cast the floating-point inputs of the model to param_dtype;
  /// unset: true. Version 1: cast those of every unit; has no effect and is
  /// reported if true; unset: false.
  std::optional<bool> cast_forward_inputs = std::nullopt;
  /// Version 1: cast the floating-point inputs of the model to param_dtype.
  /// Unset: true.
  std::optional<bool> cast_root_forward_inputs = std::nullopt;

  bool operator==(const MixedPrecisionPolicy&) const = default;
};

/// Options for sharding parameters, gradients and optimizer state over the
/// ranks, spelled as in Accelerate's FullyShardedDataParallelPlugin. A field
/// left unset takes the launcher's value (`--fsdp_*`, `FSDP_*`,
/// `fsdp_config:`), else the plugin's default, named below.
struct FullyShardedDataParallelOptions {
  // What is sharded, and when it is resharded.

  /// Which of PyTorch's two APIs: 1 is configured by sharding_strategy, 2 by
  /// reshard_after_forward. Both do the same here. Unset: 1.
  std::optional<int> fsdp_version = std::nullopt;
  /// Unset, in version 1: full_shard.
  std::optional<ShardingStrategy> sharding_strategy = std::nullopt;
  /// Version 2. True: full_shard; false: shard_grad_op; a number: between
  /// forward and backward, parameters are sharded over groups of that many
  /// consecutive ranks. In version 1, a strategy, which sharding_strategy
  /// overrides. Unset: true.
  std::optional<std::variant<bool, int, ShardingStrategy>>
      reshard_after_forward = std::nullopt;

  // What is gathered ahead of its use.

  /// When backward gathers the next unit. Unset: backward_pre, since the
  /// execution order of the last pass is known here without an option. Version
  /// 2 ignores it, with a warning.
  std::optional<BackwardPrefetch> backward_prefetch = std::nullopt;
  /// Gather the next unit in forward while the current one computes; false:
  /// when it is needed, which saves its memory. Unset: true, for the same
  /// reason. Version 2 rejects it.
  std::optional<bool> forward_prefetch = std::nullopt;

  // Dtypes.

  /// Unset: as `mixed_precision` says.
  std::optional<MixedPrecisionPolicy> mixed_precision_policy = std::nullopt;

  // Which modules become units.

  /// Unset, also by the launcher: the elements of the outermost Sequentials and
  /// ModuleLists become units.
  std::optional<AutoWrapPolicy> auto_wrap_policy = std::nullopt;
  /// Replaces a policy: returns whether the module of this name becomes a unit.
  std::function<bool(const std::string& name, const torch::nn::Module& module)>
      custom_auto_wrap_policy = nullptr;
  /// Class names, for transformer_based_wrap.
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap =
      std::nullopt;
  /// Minimum number of parameters, for size_based_wrap. Larger units need fewer
  /// messages and more memory. Unset: 0, which makes no units in version 1, and
  /// one of each module with parameters in version 2.
  std::optional<std::int64_t> min_num_params = std::nullopt;

  // Memory, and modules that are left alone.

  /// Keep shards in host memory between uses, and step there: for models whose
  /// shards do not fit on the device. Each gather then copies from the host,
  /// and the CPU steps. Unset: false.
  std::optional<bool> cpu_offload = std::nullopt;
  /// With cpu_offload: a directory on a disk, such as an NVMe, where shards,
  /// their gradients and optimizer state are kept instead; each rank has files
  /// of its own there. It must exist on every machine. Unset: none.
  std::optional<std::string> offload_directory = std::nullopt;
  /// Allow an offload_directory in memory (tmpfs, ramfs), which saves none.
  /// Unset: false.
  std::optional<bool> offload_directory_in_memory = std::nullopt;
  /// With offload_directory: a parameter is stepped on by the backward that
  /// ends a window, as soon as its gradient is complete, so that the gradient
  /// needs no file, and the disk no time of its own. optimizer.step() then
  /// steps on the others. One backward must end each window. Refused with
  /// replicas of shards, clipping and a loss scaler (fp16), which need all
  /// gradients at once.
  /// Unset: false.
  std::optional<bool> step_in_backward = std::nullopt;
  /// Modules that are not sharded: a regular expression that matches their
  /// full names.
  std::optional<std::string> ignored_modules = std::nullopt;

  // Limits.

  /// At most two units are unsharded at a time, the one that computes and the
  /// next; false: at most three, for links that are slower than the
  /// computation. Unset: true.
  std::optional<bool> limit_all_gathers = std::nullopt;

  // Activations.

  /// Recompute a unit's activations in the backward pass, if they do not fit
  /// into memory. Costs about one more forward per step. Unset: false.
  std::optional<bool> activation_checkpointing = std::nullopt;
  /// Keep the inputs of such units in host memory. Needs version 2 and
  /// activation_checkpointing. Unset: false.
  std::optional<bool> activation_checkpointing_offload = std::nullopt;

  // Initial weights.

  /// Only rank 0 makes or reads weights; the others receive them. Used by
  /// Accelerator::init_model() and load_model(). Unset: false.
  std::optional<bool> cpu_ram_efficient_loading = std::nullopt;
};

}  // namespace accelerate
