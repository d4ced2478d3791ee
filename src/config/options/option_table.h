#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace accelerate::detail {

/// `truth` is a boolean whose flag takes a value: --flag true.
enum class OptionKind { boolean, truth, integer, number, text, choice };

/// The programs that act on an option's value.
enum class OptionUse {
  acts,         ///< the library, or it refuses what it cannot do
  launches,     ///< our launcher; programs do not read it
  carried,      ///< Python programs; this library does not yet
  python_only,  ///< Python programs; this library never will
  unused,       ///< none: Accelerate's files and command lines may have it
};

using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

/// One setting under all its names: the single source of the launcher's flags,
/// the config file's keys, the variables, and docs/reference/options.md.
struct OptionSpec {
  std::string_view key;      ///< key in the config file and the launcher's JSON
  std::string_view section;  ///< map of the config file that holds it, or empty
  std::string_view flag;     ///< flag of `accelerate-cpp launch`, or empty
  std::string_view variable;  ///< environment variable, or empty
  OptionKind kind;
  /// The value that the library or our launcher uses if no source sets the
  /// option; empty: none, or it depends on other settings.
  std::string_view default_value;
  std::string_view limits;  ///< choice: "a|b|c"; numbers: "1.." or "0..65535"
  OptionUse use;
  std::string_view group;  ///< heading above the flag in the help
  std::string_view help;
  /// What Accelerate's launcher passes to Python programs, where that differs
  /// from `default_value`; empty: nothing.
  std::optional<std::string_view> python_default = std::nullopt;
  /// Values, separated by |, that `accelerate config` writes if its defaults
  /// are accepted, and that request nothing: "true|false".
  std::string_view written_by_default = "";

  [[nodiscard]] std::string_view default_for_python() const {
    return python_default.value_or(default_value);
  }
};

std::span<const OptionSpec> option_table();

/// Null if the table has no such key.
const OptionSpec* find_option(std::string_view key);

/// Null if no option has this environment variable.
const OptionSpec* find_option_of_variable(std::string_view variable);

/// Whether `value` also applies without the setting: here, or under
/// Accelerate's launcher, which passes most of them.
bool is_default(const OptionSpec& spec, const OptionValue& value);

/// Whether `accelerate config` writes `value` unasked, so that in a file it is
/// no request.
bool is_written_by_default(const OptionSpec& spec, const OptionValue& value);

/// The value that `text` stands for. Throws ConfigError listing the allowed
/// values.
OptionValue parse_option(const OptionSpec& spec, std::string_view text);

std::string format_option(const OptionValue& value);

/// The table as the Markdown page docs/reference/options.md.
std::string options_page();

}  // namespace accelerate::detail
