#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// The init_kwargs or log_kwargs of one tracker. Values that are none count as
/// not given. Functions throw ConfigError for a value of the wrong type.
class KeywordArguments {
 public:
  /// `subject`: their name in messages, such as "wandb's init_kwargs". Throws
  /// ConfigError listing `known` if any other name is given.
  KeywordArguments(
      std::string subject,
      const TrackedValues& values,
      std::initializer_list<std::string_view> known);

  /// Null if it was not given.
  [[nodiscard]] const TrackedValue* find(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  [[nodiscard]] std::optional<double> number(std::string_view name) const;
  [[nodiscard]] std::optional<bool> flag(std::string_view name) const;
  /// A list of strings, or one string.
  [[nodiscard]] std::optional<std::vector<std::string>> texts(
      std::string_view name) const;

 private:
  [[noreturn]] void refuse(
      std::string_view name,
      const TrackedValue& value,
      std::string_view wanted) const;

  std::string subject_;
  TrackedValues values_;
};

}  // namespace accelerate::detail
