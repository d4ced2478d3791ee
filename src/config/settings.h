#pragma once

#include <array>
#include <atomic>
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

namespace accelerate::detail {

/// Which options of the table have been read, and which have been reported.
/// Thread-safe.
class ReadRecord {
 public:
  ReadRecord();

  void mark_read(const OptionSpec& spec) const { set(spec, kRead); }
  [[nodiscard]] bool was_read(const OptionSpec& spec) const {
    return has(spec, kRead);
  }
  void mark_reported(const OptionSpec& spec) const { set(spec, kReported); }
  [[nodiscard]] bool was_reported(const OptionSpec& spec) const {
    return has(spec, kReported);
  }

 private:
  static constexpr std::uint8_t kRead = 1, kReported = 2;

  void set(const OptionSpec& spec, std::uint8_t mark) const;
  [[nodiscard]] bool has(const OptionSpec& spec, std::uint8_t mark) const;

  /// One per row of the table.
  std::unique_ptr<std::atomic<std::uint8_t>[]> marks_;
};

/// The origin of a value, weakest first. `settled`: the library chose it once
/// everything else was known.
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

/// A setting with a value from some source.
struct GivenSetting {
  std::string key;
  std::string where;
};

/// Which rows explain() lists.
enum class ExplainedRows {
  of_launch,
  /// Without defaults of options that only launchers act on, and with a note
  /// where a given setting has no effect.
  of_program,
};

/// Every option of the table with its value and origin. Copies share the record
/// of which options were read.
class Settings {
 public:
  /// Returns null for an option that is unset and has no default. Does not
  /// count as reading it.
  [[nodiscard]] const Resolved* find(std::string_view key) const;

  // These count as reading the option: its value decides something.

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  /// The value as its source wrote it.
  [[nodiscard]] std::optional<std::string> as_written(
      std::string_view key) const;

  /// Whether a source, rather than the default, sets the option.
  [[nodiscard]] bool is_given(std::string_view key) const;

  /// Marks an option as read that is read elsewhere, such as a value overridden
  /// in code.
  void mark_read(std::string_view key) const;
  [[nodiscard]] bool was_read(std::string_view key) const;
  /// For settings that the launcher has reported to the user.
  void mark_reported(std::string_view key) const;
  /// False for a key that the table does not have.
  [[nodiscard]] bool was_reported(std::string_view key) const;

  /// The settings given by flags, variables or a file that code does not
  /// override and nothing has acted on so far: those that were not read, and
  /// those that this library does not act on according to the table. Omits
  /// values that change nothing and settings passed to mark_reported().
  [[nodiscard]] std::vector<GivenSetting> unread() const;

  /// Sets the value in force of an option that no source gives.
  void settle(std::string_view key, OptionValue value, std::string where);

  /// Whether the option's value requests something: it is neither a default nor
  /// what Accelerate writes into its files unasked.
  [[nodiscard]] bool is_requested(std::string_view key) const;

  /// Replaces the value with the one that is in force instead: code's, or that
  /// of an engine's own configuration.
  void overrule(std::string_view key, OptionValue value, std::string where);

  /// One line per option: name, value, origin. Options that only Python
  /// programs use are listed only if they are given, options of an engine only
  /// if they are given or settled.
  [[nodiscard]] std::string explain(
      ExplainedRows rows = ExplainedRows::of_launch) const;

  [[nodiscard]] const std::map<std::string, Resolved, std::less<>>& all()
      const {
    return values_;
  }

 private:
  friend Settings resolve(std::span<const Source> sources);

  void put(
      std::string_view key,
      OptionValue value,
      Origin origin,
      std::string where);
  [[nodiscard]] bool is_without_effect(
      const OptionSpec& spec,
      const Resolved& value) const;

  std::map<std::string, Resolved, std::less<>> values_;
  std::shared_ptr<const ReadRecord> reads_ = std::make_shared<ReadRecord>();
};

/// Takes each option from the strongest source that sets it. First checks every
/// value of every source, and throws one ConfigError with all complaints.
Settings resolve(std::span<const Source> sources);

/// The settings in the environment variables of the table.
Source source_from_environment(const Environment& environment);

/// `ACCELERATE_CPP_CONFIG`: the launcher's decisions, as one JSON object with
/// the config file's keys, each key's origin under "origins", and a list of
/// keys under "reported".
inline constexpr std::string_view kHandoverVariable = "ACCELERATE_CPP_CONFIG";
Source source_from_handover(const Environment& environment);
/// `reported` are the keys of settings that the launcher has reported to have
/// no effect.
std::string to_handover(
    const Settings& settings,
    const std::vector<std::string>& reported = {});
/// Marks the settings that the launcher has reported.
void mark_reported_by_launcher(
    const Environment& environment,
    const Settings& settings);

/// The settings that a rank gets from outside the code: the launcher's
/// decisions, then the environment, then the defaults. Only the launcher reads
/// files.
inline Settings launch_settings(const Environment& environment) {
  const std::array sources{
      source_from_handover(environment), source_from_environment(environment)};
  Settings settings = resolve(sources);
  mark_reported_by_launcher(environment, settings);
  return settings;
}

}  // namespace accelerate::detail
