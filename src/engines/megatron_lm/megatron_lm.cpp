#include "engines/megatron_lm/megatron_lm.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/megatron_lm/megatron_args.h"

namespace accelerate::detail {

namespace {

// Training, validation and test.
constexpr std::size_t kNumSplits = 3;

class MegatronLMResolution {
 public:
  MegatronLMResolution(const MegatronLMOptions& given, const Settings& settings)
      : MegatronLMResolution(read_megatron_arguments(given), settings) {}

  MegatronLMOptions run() {
    take_degrees();
    take(options_.gradient_clipping, "gradient_clipping", 1.0);
    take(options_.sequence_parallelism, "sequence_parallelism", false);
    take_recomputation();
    take_optimizer();
    take(options_.eod_mask_loss, "eod_mask_loss", false);
    take(options_.calculate_per_token_loss, "calculate_per_token_loss", true);
    take_model();
    fill_loop();
    fill_data();
    check_counts();
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return options_;
  }

 private:
  MegatronLMResolution(MegatronArguments arguments, const Settings& settings)
      : options_(std::move(arguments.options)),
        settings_(settings),
        complaints_(std::move(arguments.complaints)) {}

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
    require_one_of(
        "recompute_granularity",
        *options_.recompute_granularity,
        {"full", "selective"});
    require_one_of(
        "recompute_method", *options_.recompute_method, {"uniform", "block"});
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

  // The launcher has no options for the fields from here on.
  void fill_loop() {
    fill(options_.return_logits, false);
    fill(options_.is_train_batch_min, true);
    fill(options_.weight_decay_incr_style, "constant");
    require_one_of(
        "weight_decay_incr_style",
        *options_.weight_decay_incr_style,
        {"constant", "linear", "cosine"});
    fill(options_.lr_decay_style, "linear");
    require_one_of(
        "lr_decay_style",
        *options_.lr_decay_style,
        {"constant", "linear", "cosine", "inverse-square-root", "WSD"});
    fill(options_.min_lr, 0.0);
    fill(options_.lr_mult, 1.0);
    const double warmup = options_.lr_warmup_fraction.value_or(0);
    if (!(warmup >= 0 && warmup <= 1)) {
      complaints_.push_back(format(
          "[config] megatron_lm.lr_warmup_fraction is {}; it is a fraction, "
          "from 0 to 1",
          warmup));
    }
  }

  void fill_data() {
    fill(options_.megatron_dataset_flag, false);
    fill(options_.set_all_logging_options, false);
    fill(options_.eval_iters, 100);
    fill(options_.eval_interval, 1000);
    if (auto& samples = options_.consumed_samples;
        samples && !samples->empty()) {
      if (samples->size() > kNumSplits) {
        complaints_.push_back(format(
            "[config] megatron_lm.consumed_samples has {} entries; it has one "
            "each for training, validation and test",
            samples->size()));
      }
      samples->resize(std::max(samples->size(), kNumSplits));
    }
  }

  void check_counts() {
    const auto require =
        [&](const auto& field, std::string_view name, std::int64_t least) {
          if (!field || *field >= least) return;
          complaints_.push_back(format(
              "[config] megatron_lm.{} is {}; it is at least {}",
              name,
              *field,
              least));
        };
    const MegatronLMOptions& o = options_;
    require(o.gradient_clipping, "gradient_clipping", 0);
    // "block" may recompute no layer.
    require(
        o.recompute_num_layers,
        "recompute_num_layers",
        o.recompute_method == "block" ? 0 : 1);
    require(
        o.decoder_last_pipeline_num_layers,
        "decoder_last_pipeline_num_layers",
        0);
    require(
        o.pipeline_model_parallel_split_rank,
        "pipeline_model_parallel_split_rank",
        0);
    require(
        o.num_layers_per_virtual_pipeline_stage,
        "num_layers_per_virtual_pipeline_stage",
        1);
    require(o.seq_length, "seq_length", 1);
    require(o.encoder_seq_length, "encoder_seq_length", 1);
    require(o.decoder_seq_length, "decoder_seq_length", 1);
    require(o.train_iters, "train_iters", 0);
    require(o.train_samples, "train_samples", 0);
    require(o.lr_decay_iters, "lr_decay_iters", 0);
    require(o.lr_decay_samples, "lr_decay_samples", 0);
    require(o.lr_warmup_iters, "lr_warmup_iters", 0);
    require(o.lr_warmup_samples, "lr_warmup_samples", 0);
    require(o.eval_iters, "eval_iters", 0);
    require(o.eval_interval, "eval_interval", 1);
  }

  template <class Value, class Default>
  static void fill(std::optional<Value>& field, Default default_value) {
    if (!field) field = default_value;
  }

  void require_one_of(
      std::string_view name,
      const std::string& value,
      const std::vector<std::string>& allowed) {
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end())
      return;
    complaints_.push_back(format(
        "[config] megatron_lm.{} is \"{}\"; it must be one of {}",
        name,
        value,
        join(allowed, ", ")));
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
