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

/// What is split over the ranks, and when whole parameters are given back.
enum class ShardingStrategy {
  /// Parameters, gradients and optimizer state; parameters are gathered for
  /// each use (ZeRO-3).
  full_shard = 1,
  /// Gradients and optimizer state; parameters stay whole from a forward to
  /// the end of its backward (ZeRO-2).
  shard_grad_op,
  /// Nothing: every rank has a copy.
  no_shard,
  /// full_shard among the ranks of a shard group, copies across groups.
  hybrid_shard,
  /// shard_grad_op among them.
  hybrid_shard_zero2,
};

/// When the backward pass gathers its next unit.
enum class BackwardPrefetch {
  none,
  /// Before the gradients of the present unit are computed: fastest.
  backward_pre,
  /// After them: less memory.
  backward_post,
};

/// In what form weights are saved.
enum class StateDictType {
  /// Whole, by rank 0.
  full_state_dict = 1,
  /// Each rank's own part, of use with the same number of ranks only.
  local_state_dict,
  /// Each rank's own part, of use with any number of ranks.
  sharded_state_dict,
};

/// Which modules become units, whose parameters are gathered together. What no
/// unit holds belongs to the root's.
enum class AutoWrapPolicy {
  no_wrap,
  /// The modules whose class is named.
  transformer_based_wrap,
  /// Modules that hold at least so many parameters.
  size_based_wrap,
};

enum class FloatType { fp32, fp16, bf16 };

/// In what a sharded model computes and sends. Unset: as the parameter is.
struct MixedPrecisionPolicy {
  /// Dtype of unsharded parameters; shards keep their own dtype.
  std::optional<FloatType> param_dtype = std::nullopt;
  /// Gradients travel in it. Unset: param_dtype.
  std::optional<FloatType> reduce_dtype = std::nullopt;
  /// Dtype of floating-point buffers, such as running statistics.
  std::optional<FloatType> buffer_dtype = std::nullopt;
  /// Dtype of floating-point outputs of the model's forward.
  std::optional<FloatType> output_dtype = std::nullopt;

  bool operator==(const MixedPrecisionPolicy&) const = default;
};

/// Splitting parameters, gradients and optimizer state over the ranks, in the
/// words of Accelerate's FullyShardedDataParallelPlugin. A field left unset
/// takes what the launcher said (`--fsdp_*`, `FSDP_*`, `fsdp_config:`), else
/// the plugin's default, which is named.
struct FullyShardedDataParallelOptions {
  // What is split, and until when it stays gathered.

  /// Which of PyTorch's two spellings: 1 chooses by sharding_strategy, 2 by
  /// reshard_after_forward. Both do the same here. Unset: 1.
  std::optional<int> fsdp_version = std::nullopt;
  /// Unset, in version 1: full_shard.
  std::optional<ShardingStrategy> sharding_strategy = std::nullopt;
  /// Version 2. True: full_shard; false: shard_grad_op; a number: parameters
  /// stay split over so many neighbouring ranks between forward and backward.
  /// In version 1 a strategy, which sharding_strategy overrules. Unset: true.
  std::optional<std::variant<bool, int, ShardingStrategy>>
      reshard_after_forward = std::nullopt;

  // What is gathered ahead of its use.

  std::optional<BackwardPrefetch> backward_prefetch = std::nullopt;
  /// Gather the next unit while the present one computes its forward. Unset:
  /// false in version 1; version 2 refuses it.
  std::optional<bool> forward_prefetch = std::nullopt;

  // Dtypes.

  std::optional<MixedPrecisionPolicy> mixed_precision_policy = std::nullopt;

  // Which modules become units.

  /// Unset and not said by the launcher: the elements of the outermost
  /// Sequentials and ModuleLists become units.
  std::optional<AutoWrapPolicy> auto_wrap_policy = std::nullopt;
  /// In place of a policy: whether the module of this name becomes a unit.
  std::function<bool(const std::string& name, const torch::nn::Module& module)>
      custom_auto_wrap_policy = nullptr;
  /// Names of classes, for transformer_based_wrap.
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap =
      std::nullopt;
  /// For size_based_wrap. Unset: 0, which makes no units.
  std::optional<std::int64_t> min_num_params = std::nullopt;

  // Memory, and modules that are left alone.

  /// Keep parts in host memory between uses, and step there. Unset: false.
  std::optional<bool> cpu_offload = std::nullopt;
  /// Modules that stay whole and are not touched: a regular expression that
  /// matches their names in full.
  std::optional<std::string> ignored_modules = std::nullopt;

  // Saving and loading.

  /// Understood; save_state() writes parts in any case, which any number of
  /// ranks loads, and get_state_dict() gives whole weights, as Accelerate's
  /// does, unless StateDictOptions say otherwise. Unset: full_state_dict in
  /// version 1, sharded_state_dict in version 2.
  std::optional<StateDictType> state_dict_type = std::nullopt;

  // Limits, and what the module keeps.

  /// At most two units are whole at a time, the one that computes and the
  /// next; false: at most three, for links that take longer than computing.
  /// Unset: true.
  std::optional<bool> limit_all_gathers = std::nullopt;
  /// Understood; the module keeps its own parameters in any case. Unset: false
  /// in version 1, nothing in version 2.
  std::optional<bool> use_orig_params = std::nullopt;
  /// Begin with the weights of rank 0. Understood; here all always do. Unset:
  /// false in version 1, unless cpu_ram_efficient_loading, which needs it;
  /// nothing in version 2.
  std::optional<bool> sync_module_states = std::nullopt;

  // Activations.

  /// Compute a unit's activations again in the backward pass. Unset: false.
  std::optional<bool> activation_checkpointing = std::nullopt;
  /// Keep the inputs of such units in host memory. Unset: false.
  std::optional<bool> activation_checkpointing_offload = std::nullopt;

  // The first weights.

  /// Only rank 0 makes or reads weights; the others receive them. What
  /// Accelerator::init_model() and load_model() go by. Unset: false.
  std::optional<bool> cpu_ram_efficient_loading = std::nullopt;
};

}  // namespace accelerate
