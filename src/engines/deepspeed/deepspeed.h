#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <accelerate/deepspeed.h>

#include "config/environment.h"
#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The options, with what only the launcher and DeepSpeed's configuration say.
struct DeepSpeedFields : DeepSpeedOptions {
  std::optional<bool> zero3_save_16bit_model = std::nullopt;
};

/// Calls `visit(key, member, path)` for every field that the launcher has: the
/// launcher's key, and the path in DeepSpeed's configuration, which is empty
/// for fields that only Accelerate knows.
template <class Visit>
void visit_deepspeed_fields(const Visit& visit) {
  using O = DeepSpeedFields;
  // clang-format off
  visit("gradient_accumulation_steps", &O::gradient_accumulation_steps, "gradient_accumulation_steps");
  visit("gradient_clipping", &O::gradient_clipping, "gradient_clipping");
  visit("offload_optimizer_device", &O::offload_optimizer_device, "zero_optimization.offload_optimizer.device");
  visit("offload_optimizer_nvme_path", &O::offload_optimizer_nvme_path, "zero_optimization.offload_optimizer.nvme_path");
  visit("offload_param_device", &O::offload_param_device, "zero_optimization.offload_param.device");
  visit("offload_param_nvme_path", &O::offload_param_nvme_path, "zero_optimization.offload_param.nvme_path");
  visit("zero3_save_16bit_model", &O::zero3_save_16bit_model, "zero_optimization.stage3_gather_16bit_weights_on_model_save");
  visit("zero_stage", &O::zero_stage, "zero_optimization.stage");
  visit("offload_directory_in_memory", &O::offload_directory_in_memory, "");
  visit("step_in_backward", &O::step_in_backward, "");
  visit("zero3_init_flag", &O::zero3_init_flag, "");
  visit("deepspeed_moe_layer_cls_names", &O::transformer_moe_cls_names, "");
  // clang-format on
}

/// A DeepSpeed configuration, completed step by step: "auto" values are filled
/// in as they become known.
class DeepSpeedConfig {
 public:
  /// Reads DeepSpeed's own configuration, if there is one, and reconciles it
  /// with the options. Throws ConfigError if it cannot be read, has no
  /// "zero_optimization", contradicts the launcher's config file, or asks for
  /// MS-AMP in a way that Accelerate refuses.
  DeepSpeedConfig(
      const DeepSpeedOptions& given,
      const Settings& settings,
      const Environment& environment);

  /// Every field with its value.
  [[nodiscard]] const DeepSpeedFields& options() const { return options_; }
  /// The configuration in DeepSpeed's format.
  [[nodiscard]] const nlohmann::json& json() const { return json_; }

  [[nodiscard]] int zero_stage() const { return stage_; }
  /// Whether the launcher asks for MS-AMP.
  [[nodiscard]] bool uses_msamp() const { return uses_msamp_; }

  /// `precision` is "no", "fp16", "bf16" or "fp8", which counts as bf16. Throws
  /// ConfigError if the configuration enables a different one.
  void set_mixed_precision(std::string_view precision);

  /// Replaces each "auto" with the value for its dotted path, such as
  /// "optimizer.params.lr". Throws ConfigError naming an "auto" that `values`
  /// lacks and, with `must_match`, all values that differ.
  void fill(const nlohmann::json& values, bool must_match = true);

  /// Fills in only the paths in `values`; other "auto" values stay.
  void fill_known(const nlohmann::json& values);

  /// "fp16" or "bf16" if the configuration enables it.
  [[nodiscard]] std::optional<std::string> enabled_precision() const;

  /// The value at a path; null if there is none.
  [[nodiscard]] const nlohmann::json* find(std::string_view dotted_path) const;

 private:
  void read_options(const DeepSpeedOptions& given, const Settings& settings);
  void merge();
  void compose();
  void add_msamp(const Settings& settings);
  void find_stage();
  void fill_one(std::string_view path, const nlohmann::json& values);
  static void fill_node(
      std::string_view path,
      nlohmann::json& node,
      const nlohmann::json& values);

  DeepSpeedFields options_;
  nlohmann::json json_;
  int stage_ = -1;
  bool uses_msamp_ = false;
};

/// The precision that the program or its launcher requests.
struct RequestedPrecision {
  std::string_view name;
  /// True if neither requests one, so that the engine may choose.
  bool is_open = false;
};

/// The request that the options make: everything except degrees. Throws
/// ConfigError.
TrainingRequest read_deepspeed(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const Environment& environment,
    const RequestedPrecision& precision);

}  // namespace accelerate::detail
