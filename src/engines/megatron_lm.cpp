#include "engines/megatron_lm.h"

#include <string_view>
#include <type_traits>
#include <vector>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

MegatronLMOptions resolve_megatron_lm(
    const MegatronLMOptions& given,
    const Settings& settings) {
  MegatronLMOptions options = given;
  std::vector<std::string> complaints;
  const auto take = [&](auto& field,
                        std::string_view name,
                        auto default_value) {
    using Value = typename std::remove_reference_t<decltype(field)>::value_type;
    const std::string key = format("megatron_lm_{}", name);
    if (!field && !settings.is_given(key)) field = default_value;
    if (field) return;
    if constexpr (std::is_same_v<Value, bool>) {
      const auto value = parse_bool(settings.find(key)->text);
      field = value.value_or(default_value);
      if (!value) {
        complaints.push_back(format(
            "[config] {} is \"{}\"; it must be true or false",
            key,
            settings.find(key)->text));
      }
    } else if constexpr (std::is_same_v<Value, int>) {
      field = static_cast<int>(*settings.integer(key));
    } else if constexpr (std::is_same_v<Value, double>) {
      field = *settings.number(key);
    } else {
      field = *settings.text(key);
    }
  };
  const auto take_degree = [&](std::optional<int>& field,
                               std::string_view name) {
    take(field, name, 1);
    if (*field >= 1) return;
    complaints.push_back(format(
        "[config] megatron_lm_{} is {}; it is at least 1", name, *field));
  };
  take_degree(options.tp_degree, "tp_degree");
  take_degree(options.pp_degree, "pp_degree");
  take_degree(options.context_parallel_size, "context_parallel_size");
  take_degree(options.expert_model_parallel_size, "expert_model_parallel_size");
  take_degree(
      options.expert_tensor_parallel_size, "expert_tensor_parallel_size");
  take_degree(options.num_micro_batches, "num_micro_batches");
  take(options.gradient_clipping, "gradient_clipping", 1.0);
  take(options.sequence_parallelism, "sequence_parallelism", false);
  take(options.recompute_activations, "recompute_activations", false);
  take(options.recompute_granularity, "recompute_granularity", "full");
  take(options.recompute_method, "recompute_method", "uniform");
  take(options.recompute_num_layers, "recompute_num_layers", 1);
  take(options.use_distributed_optimizer, "use_distributed_optimizer", false);
  take(options.use_custom_fsdp, "use_custom_fsdp", false);
  take(options.optimizer_cpu_offload, "optimizer_cpu_offload", false);
  take(
      options.overlap_cpu_optimizer_d2h_h2d,
      "overlap_cpu_optimizer_d2h_h2d",
      false);
  take(
      options.use_precision_aware_optimizer,
      "use_precision_aware_optimizer",
      false);
  take(options.no_load_optim, "no_load_optim", false);
  take(options.no_save_optim, "no_save_optim", false);
  take(options.eod_mask_loss, "eod_mask_loss", false);
  take(options.calculate_per_token_loss, "calculate_per_token_loss", true);
  take(options.attention_backend, "attention_backend", true);
  take(options.attention_softmax_in_fp32, "attention_softmax_in_fp32", true);
  take(
      options.use_rotary_position_embeddings,
      "use_rotary_position_embeddings",
      true);
  take(options.attention_dropout, "attention_dropout", 0.0);
  take(options.hidden_dropout, "hidden_dropout", 0.0);
  if (!options.decoder_last_pipeline_num_layers &&
      settings.is_given("megatron_lm_decoder_last_pipeline_num_layers")) {
    options.decoder_last_pipeline_num_layers = static_cast<int>(
        *settings.integer("megatron_lm_decoder_last_pipeline_num_layers"));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  return options;
}

}  // namespace accelerate::detail
