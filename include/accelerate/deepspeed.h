#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// In place of a number: taken from what the program does.
inline constexpr int kAuto = -1;

/// Sharding in DeepSpeed's words, those of Accelerate's DeepSpeedPlugin. A
/// field left unset takes what the launcher said (`--zero_stage`,
/// `ACCELERATE_DEEPSPEED_*`, `deepspeed_config:`), else the default, which is
/// named. With a configuration of DeepSpeed's own, its values win over the
/// fields here, except where it says "auto".
struct DeepSpeedOptions {
  /// DeepSpeed's configuration: the path of its JSON file, the JSON itself, or
  /// that in URL-safe base64. Empty: the fields below say everything.
  std::string hf_ds_config = {};
  /// Unset: kAuto.
  std::optional<int> gradient_accumulation_steps = std::nullopt;
  /// Norm that gradients are clipped to; 0: not. Unset: kAuto.
  std::optional<double> gradient_clipping = std::nullopt;
  /// 0: nothing is split; 1: optimizer state; 2: gradients, too; 3:
  /// parameters, too. Unset: 2.
  std::optional<int> zero_stage = std::nullopt;
  /// "none", "cpu" or "nvme". Unset: "none".
  std::optional<std::string> offload_optimizer_device = std::nullopt;
  std::optional<std::string> offload_param_device = std::nullopt;
  /// Folders for what is offloaded to "nvme". Unset: "none".
  std::optional<std::string> offload_optimizer_nvme_path = std::nullopt;
  std::optional<std::string> offload_param_nvme_path = std::nullopt;
  /// No rank but the first makes whole parameters; stage 3 only. What
  /// Accelerator::init_model() goes by. Unset: in stage 3.
  std::optional<bool> zero3_init_flag = std::nullopt;
  /// Gather weights of 16 bits for saving; stage 3 only. Unset: false.
  std::optional<bool> zero3_save_16bit_model = std::nullopt;
  /// Classes of layers with experts, separated by commas.
  std::optional<std::string> transformer_moe_cls_names = std::nullopt;
};

}  // namespace accelerate
