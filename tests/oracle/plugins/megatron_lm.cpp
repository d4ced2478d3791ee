#include "engines/megatron_lm/megatron_lm.h"
#include "oracle/plugins/plugins.h"

namespace accelerate::oracle::topic_plugins {

namespace {

template <class Options, class Visit>
void visit_engine(Options& options, const Visit& visit) {
  visit("tp_degree", options.tp_degree);
  visit("pp_degree", options.pp_degree);
  visit("context_parallel_size", options.context_parallel_size);
  visit("expert_model_parallel_size", options.expert_model_parallel_size);
  visit("expert_tensor_parallel_size", options.expert_tensor_parallel_size);
  visit("num_micro_batches", options.num_micro_batches);
  visit("gradient_clipping", options.gradient_clipping);
  visit("sequence_parallelism", options.sequence_parallelism);
  visit("recompute_activations", options.recompute_activations);
  visit("recompute_granularity", options.recompute_granularity);
  visit("recompute_method", options.recompute_method);
  visit("recompute_num_layers", options.recompute_num_layers);
  visit("use_distributed_optimizer", options.use_distributed_optimizer);
  visit("use_custom_fsdp", options.use_custom_fsdp);
  visit("optimizer_cpu_offload", options.optimizer_cpu_offload);
  visit("use_precision_aware_optimizer", options.use_precision_aware_optimizer);
  visit("no_load_optim", options.no_load_optim);
  visit("no_save_optim", options.no_save_optim);
  visit("calculate_per_token_loss", options.calculate_per_token_loss);
  visit(
      "decoder_last_pipeline_num_layers",
      options.decoder_last_pipeline_num_layers);
}

// Visits what Megatron-LM's own loop uses.
template <class Options, class Visit>
void visit_loop(Options& options, const Visit& visit) {
  visit(
      "num_layers_per_virtual_pipeline_stage",
      options.num_layers_per_virtual_pipeline_stage);
  visit("train_iters", options.train_iters);
  visit("train_samples", options.train_samples);
  visit("weight_decay_incr_style", options.weight_decay_incr_style);
  visit("start_weight_decay", options.start_weight_decay);
  visit("end_weight_decay", options.end_weight_decay);
  visit("lr_decay_style", options.lr_decay_style);
  visit("lr_decay_iters", options.lr_decay_iters);
  visit("lr_decay_samples", options.lr_decay_samples);
  visit("lr_warmup_iters", options.lr_warmup_iters);
  visit("lr_warmup_samples", options.lr_warmup_samples);
  visit("lr_warmup_fraction", options.lr_warmup_fraction);
  visit("min_lr", options.min_lr);
}

template <class Options, class Visit>
void visit_fields(Options& options, const Visit& visit) {
  visit_engine(options, visit);
  visit_loop(options, visit);
}

}  // namespace

Json run_megatron(const Json& input) {
  const Json& args = input.at("args");
  MegatronLMOptions given;
  visit_fields(
      given, [&](const char* name, auto& field) { read(args, name, field); });
  if (args.contains("other_megatron_args"))
    given.other_megatron_args = args.at("other_megatron_args").dump();
  const auto found = detail::resolve_megatron_lm(
      detail::read_megatron_arguments(given), settings_of(input));
  Json fields = Json::object();
  visit_fields(found, [&](const char* name, const auto& field) {
    fields[name] = json_of(field);
  });
  fields["other_megatron_args"] = found.other_megatron_args
      ? Json::parse(*found.other_megatron_args)
      : Json(nullptr);
  // Accelerate derives this field; here no implementation is chosen by name.
  fields["DDP_impl"] = *found.pp_degree > 1 || *found.use_distributed_optimizer
      ? "local"
      : "torch";
  return {{"fields", fields}};
}

}  // namespace accelerate::oracle::topic_plugins
