#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// Stands for a number that is derived from the program ("auto").
inline constexpr int kAuto = -1;

/// Sharding as DeepSpeed and Accelerate's DeepSpeedPlugin spell it. A field
/// left unset takes the launcher's value (`--zero_stage`,
/// `ACCELERATE_DEEPSPEED_*`, `deepspeed_config:`), else the default named
/// below. With a DeepSpeed configuration, its values override the fields here,
/// except where it says "auto". It also chooses the precision if neither
/// AcceleratorOptions nor the launcher does ("bf16" or "fp16": {"enabled":
/// true}); a contradiction is an error, and so are optimizers, schedules and
/// loaders that do not fit its sections and batch sizes (deepspeed_training.h).
struct DeepSpeedOptions {
  // The configuration file, and the step.

  /// DeepSpeed's configuration: the path of its JSON file, the JSON itself, or
  /// the JSON in URL-safe base64. Empty: only the fields below count. Its
  /// `tensor_parallel.autotp_size` splits each layer over that many ranks, by
  /// infer_parallelize_plan() for models without a `parallelize_plan`.
  std::string hf_ds_config = {};
  /// Micro-steps per optimizer step. Unset: kAuto, which leaves the number to
  /// AcceleratorOptions, as does 1.
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  /// Norm that gradients are clipped to; 0: no clipping. Unset: kAuto, which
  /// clips to 1.0, as Accelerate's does. A configuration without the key does
  /// not clip.
  std::optional<double> gradient_clipping = std::nullopt;

  // Sharding and offload.

  /// 0: nothing is sharded; 1: optimizer state; 2: gradients as well; 3:
  /// parameters as well, which takes the least memory, but gathers them for
  /// each use. Unset: 2.
  std::optional<int> zero_stage = std::nullopt;
  /// Where optimizer state is kept: "none", "cpu" or "nvme". "cpu" here or for
  /// parameters moves shards and state alike to host memory, and the step to
  /// the CPU. "nvme" needs stage 1, for parameters stage 3. Unset: "none".
  std::optional<std::string> offload_optimizer_device = std::nullopt;
  /// Where parameters are kept, in the same terms.
  std::optional<std::string> offload_param_device = std::nullopt;
  /// Directories for what is offloaded to "nvme", which need one each; they
  /// exist on every machine, and each rank has files of its own there. Without
  /// effect for other devices, and reported. Unset: "none".
  std::optional<std::string> offload_optimizer_nvme_path = std::nullopt;
  /// The directory of parameters.
  std::optional<std::string> offload_param_nvme_path = std::nullopt;
  /// Allow such directories in memory (tmpfs, ramfs), where they save none.
  /// Unset: false.
  std::optional<bool> offload_directory_in_memory = std::nullopt;
  /// With "nvme" for the optimizer, in stage 2 or 3: as in
  /// FullyShardedDataParallelOptions. Unset: false.
  std::optional<bool> step_in_backward = std::nullopt;

  // Making a model of stage 3; layers with experts.

  /// Only rank 0 creates full parameters; stage 3 only. Read by
  /// Accelerator::init_model(). Unset: true in stage 3.
  std::optional<bool> zero3_init_flag = std::nullopt;
  /// Classes of mixture-of-experts layers, separated by commas: with stage 3,
  /// each such layer is gathered as one unit. Without effect in other stages,
  /// and reported. Naming a class that no module has is an error.
  std::optional<std::string> transformer_moe_cls_names = std::nullopt;
};

}  // namespace accelerate
