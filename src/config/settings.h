#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/environment.h"
#include "config/options/option_table.h"

namespace accelerate::detail {

/// The origin of a value, weakest first.
enum class Origin { default_value, file, environment, launcher, flag, code };

/// Unchecked values from one origin.
struct Source {
  Origin origin;
  /// By key: the value as a string, and its origin as shown to users, such as
  /// "environment variable X" or "file run.yaml".
  std::map<std::string, std::pair<std::string, std::string>, std::less<>>
      values;

  void add(std::string_view key, std::string text, std::string where);
};

struct Resolved {
  OptionValue value;
  /// The value as its source wrote it.
  std::string text;
  Origin origin;
  std::string where;
};

/// Every option of the table with its value and origin.
class Settings {
 public:
  /// Returns nothing for an option that is unset and has no default.
  [[nodiscard]] const Resolved* find(std::string_view key) const;

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;

  /// Whether any source sets the option, rather than its default.
  [[nodiscard]] bool is_given(std::string_view key) const;

  /// One line per option: name, value, origin. Options that only Python
  /// programs use are listed only if they are given.
  [[nodiscard]] std::string explain() const;

  [[nodiscard]] const std::map<std::string, Resolved, std::less<>>& all()
      const {
    return values_;
  }

 private:
  friend Settings resolve(std::span<const Source> sources);
  std::map<std::string, Resolved, std::less<>> values_;
};

/// Takes each option from the strongest source that sets it. Checks every value
/// of every source first and throws one ConfigError with all complaints.
Settings resolve(std::span<const Source> sources);

/// The settings in the environment variables of the table.
Source source_from_environment(const Environment& environment);

/// `ACCELERATE_CPP_CONFIG`: the launcher's decisions, as one JSON object with
/// the config file's keys, and under "origins" the origin of each.
inline constexpr std::string_view kHandoverVariable = "ACCELERATE_CPP_CONFIG";
Source source_from_handover(const Environment& environment);
std::string to_handover(const Settings& settings);

}  // namespace accelerate::detail
