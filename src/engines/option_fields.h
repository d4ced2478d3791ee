#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/text/text.h"
#include "config/settings.h"
#include "engines/fully_sharded_names.h"

namespace accelerate::detail {

/// A field of an engine's options, and the launcher's key for it.
template <class Options, class T>
struct OptionField {
  std::string_view key;
  std::optional<T> Options::*member;
};
template <class Options, class T>
OptionField(const char*, std::optional<T> Options::*)
    -> OptionField<Options, T>;

/// The value in the option table's form: enumerators by name, lists with
/// commas.
template <class T>
OptionValue option_value(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return join(value, ",");
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::int64_t>(value);
  } else {
    return OptionValue(value);
  }
}

template <class... T>
OptionValue option_value(const std::variant<T...>& value) {
  return std::visit([](const auto& v) { return option_value(v); }, value);
}

/// Puts an option into the settings in force: what code gives, else the value
/// that the engine takes where the launcher gives none either.
template <class T>
void record(
    Settings& settings,
    std::string_view key,
    const std::optional<T>& given,
    const std::optional<T>& found) {
  if (given) {
    settings.overrule(key, option_value(*given), "code");
  } else if (found) {
    settings.settle(key, option_value(*found), "default");
  }
}

/// Records all `fields`, a tuple of OptionFields.
template <class Options, class Fields>
void record_fields(
    Settings& settings,
    const Fields& fields,
    const Options& given,
    const Options& found) {
  std::apply(
      [&](const auto&... field) {
        (record(settings, field.key, given.*field.member, found.*field.member),
         ...);
      },
      fields);
}

}  // namespace accelerate::detail
