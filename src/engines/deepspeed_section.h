#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// Reads a section {"type": ..., "params": {...}} of a DeepSpeed configuration.
/// Parameters are taken one by one; those that are left at the end are unknown.
/// Every reader throws ConfigError for a value of another kind.
class DeepSpeedSectionReader {
 public:
  /// `config`: the configuration, JSON. `automatic`: the values of "auto", by
  /// parameter. Throws ConfigError if there is no such section with a type.
  DeepSpeedSectionReader(
      const std::string& config,
      std::string name,
      std::map<std::string, double> automatic);

  [[nodiscard]] const std::string& type() const { return type_; }

  double number(const std::string& key, double otherwise);
  bool truth(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  std::tuple<double, double> pair(
      const std::string& key,
      const std::tuple<double, double>& otherwise);

  /// Accepts a parameter that says how DeepSpeed computes, not what.
  void pass_over(const std::string& key) { unknown_.erase(key); }

  /// Throws ConfigError naming the parameters that nobody took.
  void require_all_known() const;
  /// Throws ConfigError: the type is not one of `known`.
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
