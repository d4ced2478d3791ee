#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// A copy of environment variables, so that everything depends on a value and
/// not on the process: ranks that are threads get one each.
class Environment {
 public:
  Environment() = default;
  explicit Environment(
      std::map<std::string, std::string, std::less<>> variables);

  /// This process's variables at the time of the call.
  static Environment current();

  /// Returns nothing for a variable that is unset or empty.
  [[nodiscard]] std::optional<std::string> get(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const {
    return get(name).has_value();
  }

  void set(std::string name, std::string value);

  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& all()
      const {
    return variables_;
  }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

}  // namespace accelerate::detail
