#include <accelerate/error.h>

#include "base/text.h"
#include "engines/megatron_lm.h"
#include "engines/translations.h"

namespace accelerate::detail {

namespace {

// Lists the fields that the program, its model or another option decides here.
class MegatronWithoutCounterpart {
 public:
  MegatronWithoutCounterpart(
      const MegatronLMOptions& given,
      const MegatronLMOptions& found,
      const Settings& settings)
      : given_(given),
        found_(found),
        defaults_(resolve_megatron_lm({}, resolve({}))),
        settings_(settings) {}

  std::vector<IgnoredSetting> list() {
    using Options = MegatronLMOptions;
    note(&Options::sequence_parallelism, "sequence_parallelism");
    note(
        &Options::num_micro_batches,
        "num_micro_batches",
        "use gradient_accumulation_steps");
    note(&Options::recompute_granularity, "recompute_granularity");
    note(&Options::recompute_method, "recompute_method");
    note(&Options::recompute_num_layers, "recompute_num_layers");
    note(
        &Options::overlap_cpu_optimizer_d2h_h2d,
        "overlap_cpu_optimizer_d2h_h2d");
    note(
        &Options::use_precision_aware_optimizer,
        "use_precision_aware_optimizer",
        "use master_weights");
    note(&Options::no_load_optim, "no_load_optim");
    note(&Options::no_save_optim, "no_save_optim");
    note(&Options::eod_mask_loss, "eod_mask_loss");
    note(&Options::calculate_per_token_loss, "calculate_per_token_loss");
    note(
        &Options::decoder_last_pipeline_num_layers,
        "decoder_last_pipeline_num_layers");
    note(&Options::attention_backend, "attention_backend");
    note(&Options::attention_softmax_in_fp32, "attention_softmax_in_fp32");
    note(
        &Options::use_rotary_position_embeddings,
        "use_rotary_position_embeddings");
    note(&Options::attention_dropout, "attention_dropout");
    note(&Options::hidden_dropout, "hidden_dropout");
    return std::move(ignored_);
  }

 private:
  // Values equal to the default are not listed: Accelerate's launcher always
  // gives most fields.
  template <class T>
  void note(
      std::optional<T> MegatronLMOptions::*field,
      const std::string& name,
      const std::string& instead = {}) {
    if (given_.*field) {
      ignored_.push_back({name, instead, "code"});
    } else if (found_.*field != defaults_.*field) {
      ignored_.push_back(
          {name, instead, settings_.find("megatron_lm_" + name)->where});
    }
  }

  const MegatronLMOptions& given_;
  const MegatronLMOptions& found_;
  MegatronLMOptions defaults_;
  const Settings& settings_;
  std::vector<IgnoredSetting> ignored_;
};

}  // namespace

bool uses_megatron_lm(
    const ParallelOptions& options,
    const Settings& settings) {
  return settings.boolean("use_megatron_lm") || options.megatron_lm.has_value();
}

TrainingRequest read_megatron_lm(
    const MegatronLMOptions& given,
    const Settings& settings) {
  const MegatronLMOptions found = resolve_megatron_lm(given, settings);
  TrainingRequest request;
  request.engine = Engine::megatron_lm;
  ShardingRequest& sharding = request.sharding.emplace();
  // Megatron's own FSDP shards parameters, its optimizer only its state.
  sharding.shard_parameters = *found.use_custom_fsdp;
  sharding.reshard_after_forward = *found.use_custom_fsdp;
  const bool shards =
      *found.use_custom_fsdp || *found.use_distributed_optimizer;
  sharding.span = shards ? ShardSpan::all : ShardSpan::none;
  sharding.cpu_offload = *found.optimizer_cpu_offload;
  if (sharding.cpu_offload && !shards) {
    throw ConfigError(
        "[parallel] optimizer_cpu_offload needs sharded optimizer state; set "
        "use_distributed_optimizer, too");
  }
  if (*found.gradient_clipping > 0)
    request.step.gradient_clipping = found.gradient_clipping;
  if (*found.recompute_activations) request.recomputation.emplace();
  request.ignored = MegatronWithoutCounterpart(given, found, settings).list();
  return request;
}

}  // namespace accelerate::detail
