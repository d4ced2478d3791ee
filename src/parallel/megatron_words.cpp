#include "parallel/shard_options.h"

#include <utility>

#include <accelerate/error.h>

#include "base/text.h"
#include "engines/megatron_lm.h"

namespace accelerate::detail {

namespace {

// What the program, the model or another option says here.
std::vector<std::string> without_counterpart(const MegatronLMOptions& given) {
  std::vector<std::string> names;
  const auto note = [&](const auto& field, std::string_view name) {
    if (field) names.emplace_back(name);
  };
  note(given.sequence_parallelism, "sequence_parallelism");
  note(
      given.num_micro_batches,
      "num_micro_batches (use gradient_accumulation_steps)");
  note(given.recompute_granularity, "recompute_granularity");
  note(given.recompute_method, "recompute_method");
  note(given.recompute_num_layers, "recompute_num_layers");
  note(given.overlap_cpu_optimizer_d2h_h2d, "overlap_cpu_optimizer_d2h_h2d");
  note(
      given.use_precision_aware_optimizer,
      "use_precision_aware_optimizer (use master_weights)");
  note(given.no_load_optim, "no_load_optim");
  note(given.no_save_optim, "no_save_optim");
  note(given.eod_mask_loss, "eod_mask_loss");
  note(given.calculate_per_token_loss, "calculate_per_token_loss");
  note(
      given.decoder_last_pipeline_num_layers,
      "decoder_last_pipeline_num_layers");
  note(given.attention_backend, "attention_backend");
  note(given.attention_softmax_in_fp32, "attention_softmax_in_fp32");
  note(given.use_rotary_position_embeddings, "use_rotary_position_embeddings");
  note(given.attention_dropout, "attention_dropout");
  note(given.hidden_dropout, "hidden_dropout");
  return names;
}

}  // namespace

bool asks_for_megatron(
    const ParallelOptions& options,
    const Settings& settings) {
  return options.megatron_lm.has_value() || settings.boolean("use_megatron_lm");
}

ShardRequest read_megatron(
    const MegatronLMOptions& given,
    const Settings& settings) {
  const MegatronLMOptions found = resolve_megatron_lm(given, settings);
  ShardRequest request;
  ShardOptions& options = request.options;
  // Megatron's own FSDP splits everything, its optimizer only what it keeps.
  options.frees_parameters = *found.use_custom_fsdp;
  options.frees_after_forward = *found.use_custom_fsdp;
  const bool splits =
      *found.use_custom_fsdp || *found.use_distributed_optimizer;
  request.span = splits ? ShardSpan::all : ShardSpan::none;
  options.offloads_parts = *found.optimizer_cpu_offload;
  if (options.offloads_parts && !splits) {
    throw ConfigError(
        "[parallel] optimizer_cpu_offload needs optimizer state that is split; "
        "set use_distributed_optimizer, too");
  }
  if (*found.gradient_clipping > 0)
    request.gradient_clipping = found.gradient_clipping;
  if (*found.recompute_activations) request.activation_checkpointing.emplace();
  request.ignored = without_counterpart(given);
  return request;
}

}  // namespace accelerate::detail
