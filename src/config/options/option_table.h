#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace accelerate::detail {

/// `truth` is a boolean whose flag takes a value: --flag true.
enum class OptionKind { boolean, truth, integer, number, text, choice };

/// The programs that act on an option's value.
enum class OptionUse {
  acts,         ///< the launcher or the library
  carried,      ///< Python programs; this library does not yet
  python_only,  ///< Python programs; this library never will
};

using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

/// One setting, under all its names: the single source of the launcher's flags,
/// the config file's keys, the variables, and docs/reference/options.md.
struct OptionSpec {
  std::string_view key;      ///< key in the config file and the launcher's JSON
  std::string_view section;  ///< map of the config file that holds it, or empty
  std::string_view flag;     ///< flag of `accelerate-cpp launch`, or empty
  std::string_view variable;  ///< environment variable, or empty
  OptionKind kind;
  std::string_view default_value;  ///< empty: unset
  std::string_view limits;  ///< choice: "a|b|c"; numbers: "1.." or "0..65535"
  OptionUse use;
  std::string_view group;  ///< heading above the flag in the help
  std::string_view help;
};

std::span<const OptionSpec> option_table();

/// Null if the table has no such key.
const OptionSpec* find_option(std::string_view key);

/// The value that `text` means. Throws ConfigError listing the allowed values.
OptionValue parse_option(const OptionSpec& spec, std::string_view text);

std::string format_option(const OptionValue& value);

/// The table as the Markdown page docs/reference/options.md.
std::string options_page();

}  // namespace accelerate::detail
