#include "engines/megatron_lm/megatron_lm.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <accelerate/error.h>

#include "engines/megatron_lm/megatron_fields.h"

namespace accelerate::detail {

namespace {

class MegatronCheck {
 public:
  explicit MegatronCheck(MegatronArguments& given)
      : options_(given.options), complaints_(given.complaints) {}

  void run() {
    visit_megatron_fields(
        [&](std::string_view name, auto member, const MegatronField& field) {
          if (field.least) require_least(options_.*member, name, *field.least);
        });
    // "block" may recompute no layer.
    require_least(
        options_.recompute_num_layers,
        "recompute_num_layers",
        options_.recompute_method == "block" ? 0 : 1);
    require_one_of(
        "recompute_granularity",
        options_.recompute_granularity,
        {"full", "selective"});
    require_one_of(
        "recompute_method", options_.recompute_method, {"uniform", "block"});
    require_one_of(
        "weight_decay_incr_style",
        options_.weight_decay_incr_style,
        {"constant", "linear", "cosine"});
    require_one_of(
        "lr_decay_style",
        options_.lr_decay_style,
        {"constant", "linear", "cosine", "inverse-square-root", "WSD"});
    const double warmup = options_.lr_warmup_fraction.value_or(0);
    if (!(warmup >= 0 && warmup <= 1)) {
      complaints_.push_back(format(
          "[config] megatron_lm.lr_warmup_fraction must be "
          "from 0 to 1, but is {}",
          warmup));
    }
  }

 private:
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

  void require_one_of(
      std::string_view name,
      const std::optional<std::string>& value,
      const std::vector<std::string>& allowed) {
    if (!value || std::ranges::find(allowed, *value) != allowed.end()) return;
    complaints_.push_back(format(
        "[config] megatron_lm.{} is \"{}\", but must be one of {}",
        name,
        *value,
        join(allowed, ", ")));
  }

  const MegatronLMOptions& options_;
  std::vector<std::string>& complaints_;
};

}  // namespace

std::string_view megatron_key(std::string_view name) {
  const OptionSpec* const spec = find_option(format("megatron_lm_{}", name));
  return spec == nullptr ? std::string_view() : spec->key;
}

MegatronLMOptions check_megatron_lm(MegatronArguments given) {
  MegatronLMOptions& options = given.options;
  if (!options.weight_decay_incr_style)
    options.weight_decay_incr_style = "constant";
  if (!options.lr_decay_style) options.lr_decay_style = "linear";
  if (!options.min_lr) options.min_lr = 0;
  MegatronCheck(given).run();
  if (!given.complaints.empty())
    throw ConfigError(join(given.complaints, "\n"));
  return std::move(options);
}

MegatronLMOptions resolve_megatron_lm(
    const MegatronArguments& given,
    const Settings& settings) {
  MegatronArguments found = given;
  visit_megatron_fields(
      [&](std::string_view name, auto member, const MegatronField&) {
        auto& field = found.options.*member;
        using Value = typename std::decay_t<decltype(field)>::value_type;
        const std::string_view key = megatron_key(name);
        if (field || key.empty()) return;
        settings.mark_read(key);
        const Resolved* const launched = settings.find(key);
        if (launched == nullptr) return;
        if constexpr (std::is_same_v<Value, int>) {
          field = static_cast<int>(std::get<std::int64_t>(launched->value));
        } else {
          field = std::get<Value>(launched->value);
        }
      });
  return check_megatron_lm(std::move(found));
}

}  // namespace accelerate::detail
