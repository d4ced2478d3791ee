#include "engines/megatron_lm/megatron_args.h"

#include <limits>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using nlohmann::json;

// Whether the JSON value has the field's type; if so, assigns it.
template <class Value>
bool assign(const json& value, Value& field) {
  if constexpr (std::is_same_v<Value, bool>) {
    if (!value.is_boolean()) return false;
  } else if constexpr (std::is_same_v<Value, std::string>) {
    if (!value.is_string()) return false;
  } else if constexpr (std::is_floating_point_v<Value>) {
    if (!value.is_number()) return false;
  } else if constexpr (std::is_integral_v<Value>) {
    if (!value.is_number_integer()) return false;
    // Unsigned 64-bit numbers would wrap around.
    const auto number = value.get<double>();
    if (number < static_cast<double>(std::numeric_limits<Value>::min()) ||
        number > static_cast<double>(std::numeric_limits<Value>::max()))
      return false;
  } else {
    if (!value.is_array()) return false;
    Value list(value.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!assign(value[i], list[i])) return false;
    }
    field = std::move(list);
    return true;
  }
  field = value.get<Value>();
  return true;
}

template <class Value>
constexpr std::string_view name_of_type() {
  if constexpr (std::is_same_v<Value, bool>) return "true or false";
  if constexpr (std::is_same_v<Value, std::string>) return "a string";
  if constexpr (std::is_floating_point_v<Value>) return "a number";
  if constexpr (std::is_integral_v<Value>) return "a whole number";
  return "a list of whole numbers";
}

class ArgumentReader {
 public:
  ArgumentReader(const json& arguments, MegatronArguments& out)
      : arguments_(arguments), out_(out) {
    for (const auto& item : arguments.items()) unread_.insert(item.key());
  }

  // Takes a field, under its own name or that of Megatron-LM's argument.
  template <class Value>
  void take(
      std::optional<Value> MegatronLMOptions::*field,
      const std::string& name,
      const std::string& megatron_name = {}) {
    read(name, out_.options.*field);
    if (!megatron_name.empty()) read(megatron_name, out_.options.*field);
  }

  template <class Value>
  void take(
      std::optional<Value> MegatronScheduleArguments::*field,
      const std::string& name) {
    if (read(name, out_.schedule.*field)) out_.schedule_names.push_back(name);
  }

  // Arguments that ask for what this library does anyway are not reported.
  void pass_over(const std::string& name, const std::set<std::string>& values) {
    const auto found = arguments_.find(name);
    if (found != arguments_.end() && found->is_string() &&
        values.contains(found->get<std::string>()))
      unread_.erase(name);
  }

  void finish() {
    for (const std::string& name : unread_) {
      // null is Megatron-LM's own default for most arguments.
      if (!arguments_.at(name).is_null()) out_.unknown.push_back(name);
    }
  }

 private:
  template <class Value>
  bool read(const std::string& name, std::optional<Value>& field) {
    const auto found = arguments_.find(name);
    if (found == arguments_.end() || found->is_null()) return false;
    unread_.erase(name);
    Value value{};
    if (assign(*found, value)) {
      field = std::move(value);
      return true;
    }
    out_.complaints.push_back(format(
        "[config] megatron_lm.other_megatron_args has {} {}; it is {}",
        name,
        found->dump(),
        name_of_type<Value>()));
    return false;
  }

  const json& arguments_;
  MegatronArguments& out_;
  std::set<std::string> unread_;
};

void take_parallelism(ArgumentReader& reader) {
  using O = MegatronLMOptions;
  reader.take(&O::tp_degree, "tp_degree", "tensor_model_parallel_size");
  reader.take(&O::pp_degree, "pp_degree", "pipeline_model_parallel_size");
  reader.take(&O::context_parallel_size, "context_parallel_size");
  reader.take(&O::expert_model_parallel_size, "expert_model_parallel_size");
  reader.take(&O::expert_tensor_parallel_size, "expert_tensor_parallel_size");
  reader.take(&O::num_micro_batches, "num_micro_batches");
  reader.take(&O::gradient_clipping, "gradient_clipping", "clip_grad");
  reader.take(
      &O::sequence_parallelism, "sequence_parallelism", "sequence_parallel");
  reader.take(&O::recompute_activations, "recompute_activations");
  reader.take(&O::recompute_granularity, "recompute_granularity");
  reader.take(&O::recompute_method, "recompute_method");
  reader.take(&O::recompute_num_layers, "recompute_num_layers");
  reader.take(
      &O::num_layers_per_virtual_pipeline_stage,
      "num_layers_per_virtual_pipeline_stage");
  reader.take(
      &O::decoder_last_pipeline_num_layers, "decoder_last_pipeline_num_layers");
  reader.take(
      &O::pipeline_model_parallel_split_rank,
      "pipeline_model_parallel_split_rank");
}

void take_optimizer(ArgumentReader& reader) {
  using O = MegatronLMOptions;
  reader.take(&O::use_distributed_optimizer, "use_distributed_optimizer");
  reader.take(&O::use_custom_fsdp, "use_custom_fsdp", "use_megatron_fsdp");
  reader.take(&O::optimizer_cpu_offload, "optimizer_cpu_offload");
  reader.take(
      &O::overlap_cpu_optimizer_d2h_h2d, "overlap_cpu_optimizer_d2h_h2d");
  reader.take(
      &O::use_precision_aware_optimizer, "use_precision_aware_optimizer");
  for (const char* const name :
       {"main_grads_dtype",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype"})
    reader.pass_over(name, {"fp32", "torch.float32"});
  reader.take(&O::no_load_optim, "no_load_optim");
  reader.take(&O::no_save_optim, "no_save_optim");
}

void take_model(ArgumentReader& reader) {
  using O = MegatronLMOptions;
  reader.take(&O::eod_mask_loss, "eod_mask_loss");
  reader.take(&O::calculate_per_token_loss, "calculate_per_token_loss");
  reader.take(&O::attention_softmax_in_fp32, "attention_softmax_in_fp32");
  reader.take(
      &O::use_rotary_position_embeddings, "use_rotary_position_embeddings");
  reader.take(&O::attention_dropout, "attention_dropout");
  reader.take(&O::hidden_dropout, "hidden_dropout");
  reader.take(&O::seq_length, "seq_length");
  reader.take(&O::encoder_seq_length, "encoder_seq_length");
  reader.take(&O::decoder_seq_length, "decoder_seq_length");
  reader.take(&O::return_logits, "return_logits");
}

void take_loop(ArgumentReader& reader) {
  using O = MegatronLMOptions;
  reader.take(&O::train_iters, "train_iters");
  reader.take(&O::train_samples, "train_samples");
  reader.take(&O::weight_decay_incr_style, "weight_decay_incr_style");
  reader.take(&O::start_weight_decay, "start_weight_decay");
  reader.take(&O::end_weight_decay, "end_weight_decay");
  reader.take(&O::lr_decay_style, "lr_decay_style");
  reader.take(&O::lr_decay_iters, "lr_decay_iters");
  reader.take(&O::lr_decay_samples, "lr_decay_samples");
  reader.take(&O::lr_warmup_iters, "lr_warmup_iters");
  reader.take(&O::lr_warmup_samples, "lr_warmup_samples");
  reader.take(&O::lr_warmup_fraction, "lr_warmup_fraction");
  reader.take(&O::min_lr, "min_lr");
  reader.take(&O::lr_mult, "lr_mult");
  reader.take(&O::consumed_samples, "consumed_samples");
  reader.take(&O::eval_iters, "eval_iters");
  reader.take(&O::eval_interval, "eval_interval");
  reader.take(&O::tensorboard_dir, "tensorboard_dir");
  using S = MegatronScheduleArguments;
  reader.take(&S::lr_warmup_init, "lr_warmup_init");
  reader.take(&S::lr_wsd_decay_iters, "lr_wsd_decay_iters");
  reader.take(&S::lr_wsd_decay_samples, "lr_wsd_decay_samples");
  reader.take(&S::lr_wsd_decay_style, "lr_wsd_decay_style");
}

}  // namespace

MegatronArguments read_megatron_arguments(const MegatronLMOptions& given) {
  MegatronArguments out{.options = given};
  if (!given.other_megatron_args) return out;
  const json arguments = json::parse(
      *given.other_megatron_args, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) {
    out.complaints.push_back(format(
        "[config] megatron_lm.other_megatron_args is \"{}\"; it must be a "
        "JSON object",
        *given.other_megatron_args));
    return out;
  }
  ArgumentReader reader(arguments, out);
  take_parallelism(reader);
  take_optimizer(reader);
  take_model(reader);
  take_loop(reader);
  reader.finish();
  return out;
}

}  // namespace accelerate::detail
