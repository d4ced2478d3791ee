#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <accelerate/megatron_lm.h>

#include "base/text/text.h"
#include "config/settings.h"
#include "engines/megatron_lm/megatron_args.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// `given` with every unset field filled in, from the launcher's `settings` or
/// else the default; `consumed_samples` is extended to three entries. Throws
/// ConfigError for a degree below 1, and for a field without effect that
/// Megatron-LM would not understand either.
MegatronLMOptions resolve_megatron_lm(
    const MegatronArguments& given,
    const Settings& settings);

/// The request that the options make: everything except degrees; `found` is
/// resolve_megatron_lm(given, settings).
TrainingRequest read_megatron_lm(
    const MegatronArguments& given,
    const MegatronLMOptions& found,
    const Settings& settings);

/// The launcher's key for a field; empty if it has none.
std::string_view megatron_key(std::string_view name);

/// The value as the field's type; unset for a word that is neither true nor false.
template <class Value>
std::optional<Value> megatron_value(const OptionValue& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    const auto* const text = std::get_if<std::string>(&value);
    return text != nullptr ? parse_bool(*text)
                           : std::optional(std::get<bool>(value));
  } else if constexpr (std::is_same_v<Value, int>) {
    return static_cast<int>(std::get<std::int64_t>(value));
  } else if constexpr (
      std::is_same_v<Value, double> || std::is_same_v<Value, std::string>) {
    return std::get<Value>(value);
  } else {
    return std::nullopt;  // The launcher has no such option.
  }
}

}  // namespace accelerate::detail
