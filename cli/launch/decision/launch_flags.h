#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accelerate::cli {

/// The parsed command line of `launch`.
class LaunchFlags {
 public:
  /// Adds every flag of the option table, and the launch's own flags, to
  /// `command`, which must outlive this object.
  explicit LaunchFlags(CLI::App& command);

  /// The settings given as flags. Throws ConfigError for invalid choices.
  [[nodiscard]] detail::Source source() const;
  /// The program and its arguments. Throws ConfigError if none was given, or
  /// for an unknown flag, naming the nearest one.
  [[nodiscard]] std::vector<std::string> program() const;

  /// The flags as arguments, without those for these option keys.
  [[nodiscard]] std::vector<std::string> arguments_without(
      const std::vector<std::string>& keys) const;

  [[nodiscard]] const std::string& config_file() const { return config_file_; }
  [[nodiscard]] bool is_dry_run() const { return is_dry_run_; }

 private:
  [[noreturn]] void refuse(const std::string& flag) const;
  [[nodiscard]] bool was_given(std::string_view key) const;

  CLI::App& command_;
  // By key, because CLI11 finds an option by comparing all names of all
  // options.
  std::map<std::string, const CLI::Option*, std::less<>> options_;
  std::map<std::string, std::string, std::less<>> texts_;  // by option key
  std::map<std::string, bool, std::less<>> switches_;
  std::string config_file_;
  bool is_dry_run_ = false;
};

/// A flag with underscores and, as Accelerate accepts, with dashes:
/// "--a_b,--a-b".
std::string both_spellings(std::string_view flag);

}  // namespace accelerate::cli
