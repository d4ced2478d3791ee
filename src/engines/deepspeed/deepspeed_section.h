#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// Reads a section {"type": ..., "params": {...}} of a DeepSpeed configuration.
/// Parameters are taken one by one; those left at the end are unknown. Every
/// getter returns the default if the parameter is missing, and throws
/// ConfigError for a value of the wrong type.
class DeepSpeedSectionReader {
 public:
  /// `config` is the configuration as JSON; `automatic` maps parameters to the
  /// values that "auto" stands for. Throws ConfigError if there is no such
  /// section with a type.
  DeepSpeedSectionReader(
      const std::string& config,
      std::string name,
      std::map<std::string, double> automatic);

  [[nodiscard]] const std::string& type() const { return type_; }

  double number(const std::string& key, double default_value);
  bool truth(const std::string& key, bool default_value);
  std::string text(const std::string& key, const std::string& default_value);
  std::tuple<double, double> pair(
      const std::string& key,
      const std::tuple<double, double>& default_value);

  /// Ignores a parameter that affects how DeepSpeed computes, but not the
  /// result.
  void pass_over(const std::string& key) { unknown_.erase(key); }

  /// Throws ConfigError naming the parameters that were not taken.
  void require_all_known() const;
  /// Throws ConfigError saying that the type is not one of `known`.
  [[noreturn]] void refuse_type(std::string_view known) const;

 private:
  const nlohmann::json* take(const std::string& key);
  [[noreturn]] void refuse(const std::string& key, std::string_view wanted);

  std::string name_;
  std::map<std::string, double> automatic_;
  std::string type_;
  nlohmann::json params_;
  std::set<std::string> unknown_;
};

}  // namespace accelerate::detail
