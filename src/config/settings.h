#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/environment.h"
#include "config/options/option_table.h"
#include "config/read_record.h"

namespace accelerate::detail {

/// The origin of a value, weakest first. `settled`: nobody gave it; the library
/// chose it when everything else was known.
enum class Origin {
  default_value,
  settled,
  file,
  environment,
  launcher,
  flag,
  code
};

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

/// A setting that was given.
struct GivenSetting {
  std::string key;
  std::string where;
};

/// Which rows explain() lists.
enum class ExplainedRows {
  of_launch,
  /// Without defaults of what only a launcher acts on, and with a note where a
  /// given setting has no effect.
  of_program,
};

/// Every option of the table with its value and origin. Copies share the record
/// of what was read.
class Settings {
 public:
  /// Returns nothing for an option that is unset and has no default. Does not
  /// count as reading it.
  [[nodiscard]] const Resolved* find(std::string_view key) const;

  // These read the option: its value decides something.

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  /// The value as its source wrote it.
  [[nodiscard]] std::optional<std::string> as_written(
      std::string_view key) const;

  /// Whether any source sets the option, rather than its default.
  [[nodiscard]] bool is_given(std::string_view key) const;

  /// For what is read elsewhere, such as a value that code overrides.
  void mark_read(std::string_view key) const;
  [[nodiscard]] bool was_read(std::string_view key) const;
  /// For what the launcher has told the user about.
  void mark_reported(std::string_view key) const;
  /// Copies of `other` and this then know what either has read.
  void share_reads_with(const Settings& other) { reads_ = other.reads_; }

  /// The settings that flags, variables or a file gave, code does not override,
  /// and nobody has acted on so far: those that no one read, and those of which
  /// the table says that this library does not act on them. Not listed are
  /// values that change nothing, and what mark_reported() named.
  [[nodiscard]] std::vector<GivenSetting> unread() const;

  /// The value in force of an option that no source gives.
  void settle(std::string_view key, std::string text, std::string where);

  /// Replaces a value that was given by one that is in force instead.
  void overrule(std::string_view key, std::string text, std::string where);

  /// One line per option: name, value, origin. Options that only Python
  /// programs use are listed only if they are given, those of an engine only if
  /// they are given or settled.
  [[nodiscard]] std::string explain(
      ExplainedRows rows = ExplainedRows::of_launch) const;

  [[nodiscard]] const std::map<std::string, Resolved, std::less<>>& all()
      const {
    return values_;
  }

 private:
  friend Settings resolve(std::span<const Source> sources);

  [[nodiscard]] bool is_without_effect(
      const OptionSpec& spec,
      const Resolved& value) const;

  std::map<std::string, Resolved, std::less<>> values_;
  std::shared_ptr<const ReadRecord> reads_ = std::make_shared<ReadRecord>();
};

/// Takes each option from the strongest source that sets it. Checks every value
/// of every source first and throws one ConfigError with all complaints.
Settings resolve(std::span<const Source> sources);

/// The settings in the environment variables of the table.
Source source_from_environment(const Environment& environment);

/// `ACCELERATE_CPP_CONFIG`: the launcher's decisions, as one JSON object with
/// the config file's keys, under "origins" the origin of each, and under
/// "reported" a list of keys.
inline constexpr std::string_view kHandoverVariable = "ACCELERATE_CPP_CONFIG";
Source source_from_handover(const Environment& environment);
/// `reported` are the keys of settings whose lack of effect the launcher has
/// reported.
std::string to_handover(
    const Settings& settings,
    const std::vector<std::string>& reported = {});
/// Marks what the launcher has reported.
void mark_reported_by_launcher(
    const Environment& environment,
    const Settings& settings);

}  // namespace accelerate::detail
