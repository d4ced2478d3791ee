#include "engines/megatron_lm.h"

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

class MegatronLMResolution {
 public:
  MegatronLMResolution(const MegatronLMOptions& given, const Settings& settings)
      : options_(given), settings_(settings) {}

  MegatronLMOptions run() {
    take_degrees();
    take(options_.gradient_clipping, "gradient_clipping", 1.0);
    take(options_.sequence_parallelism, "sequence_parallelism", false);
    take_recomputation();
    take_optimizer();
    take(options_.eod_mask_loss, "eod_mask_loss", false);
    take(options_.calculate_per_token_loss, "calculate_per_token_loss", true);
    take_model();
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return options_;
  }

 private:
  void take_degrees() {
    take_degree(options_.tp_degree, "tp_degree");
    take_degree(options_.pp_degree, "pp_degree");
    take_degree(options_.context_parallel_size, "context_parallel_size");
    take_degree(
        options_.expert_model_parallel_size, "expert_model_parallel_size");
    take_degree(
        options_.expert_tensor_parallel_size, "expert_tensor_parallel_size");
    take_degree(options_.num_micro_batches, "num_micro_batches");
  }

  void take_recomputation() {
    take(options_.recompute_activations, "recompute_activations", false);
    take(options_.recompute_granularity, "recompute_granularity", "full");
    take(options_.recompute_method, "recompute_method", "uniform");
    take(options_.recompute_num_layers, "recompute_num_layers", 1);
  }

  void take_optimizer() {
    take(
        options_.use_distributed_optimizer, "use_distributed_optimizer", false);
    take(options_.use_custom_fsdp, "use_custom_fsdp", false);
    take(options_.optimizer_cpu_offload, "optimizer_cpu_offload", false);
    take(
        options_.overlap_cpu_optimizer_d2h_h2d,
        "overlap_cpu_optimizer_d2h_h2d",
        false);
    take(
        options_.use_precision_aware_optimizer,
        "use_precision_aware_optimizer",
        false);
    take(options_.no_load_optim, "no_load_optim", false);
    take(options_.no_save_optim, "no_save_optim", false);
  }

  void take_model() {
    take(options_.attention_backend, "attention_backend", true);
    take(options_.attention_softmax_in_fp32, "attention_softmax_in_fp32", true);
    take(
        options_.use_rotary_position_embeddings,
        "use_rotary_position_embeddings",
        true);
    take(options_.attention_dropout, "attention_dropout", 0.0);
    take(options_.hidden_dropout, "hidden_dropout", 0.0);
    constexpr std::string_view kLastStage =
        "megatron_lm_decoder_last_pipeline_num_layers";
    if (!options_.decoder_last_pipeline_num_layers &&
        settings_.is_given(kLastStage)) {
      options_.decoder_last_pipeline_num_layers =
          static_cast<int>(*settings_.integer(kLastStage));
    }
  }

  template <class Value, class Default>
  void take(
      std::optional<Value>& field,
      std::string_view name,
      Default default_value) {
    if (field) return;
    const std::string key = format("megatron_lm_{}", name);
    if (!settings_.is_given(key)) {
      field = default_value;
    } else if constexpr (std::is_same_v<Value, bool>) {
      field = truth(key).value_or(default_value);
    } else if constexpr (std::is_same_v<Value, int>) {
      field = static_cast<int>(*settings_.integer(key));
    } else if constexpr (std::is_same_v<Value, double>) {
      field = *settings_.number(key);
    } else {
      field = *settings_.text(key);
    }
  }

  std::optional<bool> truth(const std::string& key) {
    const std::string text = *settings_.as_written(key);
    const std::optional<bool> value = parse_bool(text);
    if (!value) {
      complaints_.push_back(
          format("[config] {} is \"{}\"; it must be true or false", key, text));
    }
    return value;
  }

  void take_degree(std::optional<int>& field, std::string_view name) {
    take(field, name, 1);
    if (*field >= 1) return;
    complaints_.push_back(format(
        "[config] megatron_lm_{} is {}; it is at least 1", name, *field));
  }

  MegatronLMOptions options_;
  const Settings& settings_;
  std::vector<std::string> complaints_;
};

}  // namespace

MegatronLMOptions resolve_megatron_lm(
    const MegatronLMOptions& given,
    const Settings& settings) {
  return MegatronLMResolution(given, settings).run();
}

}  // namespace accelerate::detail
