#include "engines/megatron_lm/megatron_lm.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/megatron_lm/megatron_fields.h"

namespace accelerate::detail {

namespace {

// Training, validation and test.
constexpr std::size_t kNumSplits = 3;

class MegatronLMResolution {
 public:
  MegatronLMResolution(const MegatronArguments& given, const Settings& settings)
      : options_(given.options),
        settings_(settings),
        complaints_(given.complaints) {}

  MegatronLMOptions run() {
    visit_megatron_fields(
        [&](std::string_view name, auto member, const MegatronField& field) {
          take(options_.*member, megatron_key(name));
          if (field.least) require_least(options_.*member, name, *field.least);
        });
    // "block" may recompute no layer.
    require_least(
        options_.recompute_num_layers,
        "recompute_num_layers",
        options_.recompute_method == "block" ? 0 : 1);
    require_one_of(
        "recompute_granularity",
        *options_.recompute_granularity,
        {"full", "selective"});
    require_one_of(
        "recompute_method", *options_.recompute_method, {"uniform", "block"});
    fill_loop();
    fill_data();
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return options_;
  }

 private:
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
          "[config] megatron_lm.lr_warmup_fraction must be from 0 to 1, but "
          "is {}",
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
            "[config] megatron_lm.consumed_samples must have one entry each "
            "for training, validation and test, but has {}",
            samples->size()));
      }
      samples->resize(std::max(samples->size(), kNumSplits));
    }
  }

  template <class Value>
  void require_least(
      const std::optional<Value>& field,
      std::string_view name,
      int least) {
    if constexpr (std::is_arithmetic_v<Value>) {
      if (!field || *field >= least) return;
      complaints_.push_back(format(
          "[config] megatron_lm.{} must be at least {}, but is {}",
          name,
          least,
          *field));
    }
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

  template <class Value>
  void take(std::optional<Value>& field, std::string_view key) {
    if (field || key.empty()) return;
    settings_.mark_read(key);
    const Resolved* const launched = settings_.find(key);
    if (launched == nullptr) return;
    field = megatron_value<Value>(launched->value);
    if (field) return;
    complaints_.push_back(format(
        "[config] {} is \"{}\"; it must be true or false",
        key,
        launched->text));
  }

  MegatronLMOptions options_;
  const Settings& settings_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::string_view megatron_key(std::string_view name) {
  const OptionSpec* const spec = find_option(format("megatron_lm_{}", name));
  return spec == nullptr ? std::string_view() : spec->key;
}

MegatronLMOptions resolve_megatron_lm(
    const MegatronArguments& given,
    const Settings& settings) {
  return MegatronLMResolution(given, settings).run();
}

}  // namespace accelerate::detail
