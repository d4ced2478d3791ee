#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/megatron_lm/megatron_args.h"
#include "engines/megatron_lm/megatron_lm.h"
#include "engines/translations.h"

namespace accelerate::detail {

namespace {

// Lists the fields that are decided here by the program, its model or another
// option.
class MegatronWithoutCounterpart {
 public:
  MegatronWithoutCounterpart(
      const MegatronArguments& given,
      const MegatronLMOptions& found,
      const Settings& settings)
      : arguments_(given),
        given_(given.options),
        found_(found),
        defaults_(resolve_megatron_lm({}, resolve({}))),
        settings_(settings) {}

  std::vector<IgnoredSetting> list() {
    list_step();
    list_model();
    list_loop();
    list_data();
    list_arguments();
    return std::move(ignored_);
  }

 private:
  using Options = MegatronLMOptions;

  void list_step() {
    if (*found_.tp_degree == 1) {
      note(
          &Options::sequence_parallelism,
          "sequence_parallelism",
          "it belongs to tp_degree");
    }
    if (!has_stages()) {
      note(
          &Options::num_micro_batches,
          "num_micro_batches",
          "use gradient_accumulation_steps");
    }
    list_recomputation();
    note(
        &Options::overlap_cpu_optimizer_d2h_h2d,
        "overlap_cpu_optimizer_d2h_h2d");
    note(&Options::eod_mask_loss, "eod_mask_loss");
  }

  [[nodiscard]] bool has_stages() const { return *found_.pp_degree > 1; }

  void list_recomputation() {
    const bool recomputes = *found_.recompute_activations;
    const bool is_selective = *found_.recompute_granularity == "selective";
    if (recomputes && !is_selective) return;
    const std::string instead = recomputes
        ? "it belongs to recompute_granularity full"
        : "it belongs to recompute_activations";
    if (!recomputes) {
      note(&Options::recompute_granularity, "recompute_granularity", instead);
    }
    note(&Options::recompute_method, "recompute_method", instead);
    note(&Options::recompute_num_layers, "recompute_num_layers", instead);
  }

  void list_model() {
    note(&Options::attention_backend, "attention_backend");
    note(&Options::attention_softmax_in_fp32, "attention_softmax_in_fp32");
    note(
        &Options::use_rotary_position_embeddings,
        "use_rotary_position_embeddings");
    note(&Options::attention_dropout, "attention_dropout");
    note(&Options::hidden_dropout, "hidden_dropout");
    note(
        &Options::pipeline_model_parallel_split_rank,
        "pipeline_model_parallel_split_rank");
    if (!has_stages()) {
      note(
          &Options::num_layers_per_virtual_pipeline_stage,
          "num_layers_per_virtual_pipeline_stage",
          "it belongs to pp_degree");
      note(
          &Options::decoder_last_pipeline_num_layers,
          "decoder_last_pipeline_num_layers",
          "it belongs to pp_degree");
    }
    note(&Options::seq_length, "seq_length");
    note(&Options::encoder_seq_length, "encoder_seq_length");
    note(&Options::decoder_seq_length, "decoder_seq_length");
    note(&Options::return_logits, "return_logits");
  }

  void list_loop() {
    note(&Options::is_train_batch_min, "is_train_batch_min");
    list_schedule();
    note(&Options::lr_mult, "lr_mult", "use parameter groups");
  }

  // Fields of scheduler_from_megatron_lm().
  void list_schedule() {
    const std::size_t first = ignored_.size();
    const std::string instead =
        "make the schedule by scheduler_from_megatron_lm()";
    note(&Options::train_iters, "train_iters", instead);
    note(&Options::train_samples, "train_samples", instead);
    note(&Options::weight_decay_incr_style, "weight_decay_incr_style", instead);
    note(&Options::start_weight_decay, "start_weight_decay", instead);
    note(&Options::end_weight_decay, "end_weight_decay", instead);
    note(&Options::lr_decay_style, "lr_decay_style", instead);
    note(&Options::lr_decay_iters, "lr_decay_iters", instead);
    note(&Options::lr_decay_samples, "lr_decay_samples", instead);
    note(&Options::lr_warmup_iters, "lr_warmup_iters", instead);
    note(&Options::lr_warmup_samples, "lr_warmup_samples", instead);
    note(&Options::lr_warmup_fraction, "lr_warmup_fraction", instead);
    note(&Options::min_lr, "min_lr", instead);
    for (const std::string& name : arguments_.schedule_names)
      ignored_.push_back({"other_megatron_args." + name, instead, "code"});
    for (std::size_t i = first; i < ignored_.size(); ++i)
      ignored_[i].belongs_to_schedule = true;
  }

  void list_data() {
    note(
        &Options::consumed_samples,
        "consumed_samples",
        "use save_state and load_state");
    note(&Options::megatron_dataset_flag, "megatron_dataset_flag");
    note(&Options::eval_iters, "eval_iters");
    note(&Options::eval_interval, "eval_interval");
    note(&Options::tensorboard_dir, "tensorboard_dir");
    note(&Options::set_all_logging_options, "set_all_logging_options");
  }

  void list_arguments() {
    for (const std::string& name : arguments_.unknown)
      ignored_.push_back({"other_megatron_args." + name, {}, "code"});
  }

  // Values equal to the default are not listed, because Accelerate's launcher
  // always passes most fields.
  template <class T>
  void note(
      std::optional<T> MegatronLMOptions::*field,
      const std::string& name,
      const std::string& instead = {}) {
    if (given_.*field) {
      ignored_.push_back({name, instead, "code"});
    } else if (found_.*field != defaults_.*field) {
      const std::string key = "megatron_lm_" + name;
      ignored_.push_back({name, instead, settings_.find(key)->where, key});
    }
  }

  const MegatronArguments& arguments_;
  const MegatronLMOptions& given_;
  const MegatronLMOptions& found_;
  MegatronLMOptions defaults_;
  const Settings& settings_;
  std::vector<IgnoredSetting> ignored_;
};

RecomputationRequest read_recomputation(const MegatronLMOptions& found) {
  RecomputationRequest request;
  if (*found.recompute_granularity == "selective") {
    request.modules.policy.kind = WrapPolicy::Kind::attention;
    return request;
  }
  if (*found.recompute_method == "block") {
    request.num_modules = found.recompute_num_layers;
  } else {
    request.modules_together = *found.recompute_num_layers;
  }
  return request;
}

PipelineRequest read_pipeline(
    const MegatronLMOptions& given,
    const MegatronLMOptions& found,
    const Settings& settings) {
  PipelineRequest request;
  // The default of 1 would leave all stages but one idle.
  if (given.num_micro_batches ||
      settings.is_given("megatron_lm_num_micro_batches"))
    request.num_micro_batches = found.num_micro_batches;
  request.layers_per_chunk = found.num_layers_per_virtual_pipeline_stage;
  request.layers_of_last_rank = found.decoder_last_pipeline_num_layers;
  return request;
}

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
  // Megatron's own FSDP shards parameters; its optimizer shards only its state.
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
  if (*found.recompute_activations)
    request.recomputation = read_recomputation(found);
  request.step.weighs_by_items = *found.calculate_per_token_loss;
  request.precision.master_weights = *found.use_precision_aware_optimizer;
  request.checkpoints.saves_optimizers = !*found.no_save_optim;
  request.checkpoints.loads_optimizers = !*found.no_load_optim;
  const MegatronArguments arguments = read_megatron_arguments(given);
  if (*found.pp_degree > 1)
    request.pipeline = read_pipeline(arguments.options, found, settings);
  request.infers_plan = *found.tp_degree > 1;
  request.divides_sequences =
      request.infers_plan && *found.sequence_parallelism;
  request.experts.splits_over_tensor = *found.expert_tensor_parallel_size > 1;
  request.ignored =
      MegatronWithoutCounterpart(arguments, found, settings).list();
  return request;
}

}  // namespace accelerate::detail
