#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::cli {

/// Rows under a heading, in columns as wide as necessary. The first column is
/// left-aligned, as are columns whose values are not all numbers. Values are
/// made printable.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heading);
  void add(std::vector<std::string> row);
  [[nodiscard]] bool empty() const { return rows_.size() < 2; }
  /// Each line begins with `indent` and ends with a line break.
  [[nodiscard]] std::string text(std::string_view indent = {}) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace accelerate::cli
