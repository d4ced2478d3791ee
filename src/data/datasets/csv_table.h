#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/text_file.h"

namespace accelerate::detail {

struct CsvFormat {
  char delimiter = ',';
  bool has_header = true;
};

/// The rows and fields of a CSV file, as CsvFile documents them.
class CsvTable {
 public:
  CsvTable(const std::string& path, const CsvFormat& csv);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] const std::vector<std::string>& columns() const {
    return columns_;
  }
  [[nodiscard]] std::int64_t num_rows() const {
    return static_cast<std::int64_t>(rows_.size());
  }
  /// The text in which fields_of() finds rows; throws Error if the file has
  /// become shorter.
  [[nodiscard]] std::string_view text() const { return file_.text(); }
  [[nodiscard]] std::vector<std::string> fields_of(
      std::string_view text,
      std::int64_t row) const;
  /// The indices of columns. Throws ConfigError for names that do not occur
  /// exactly once.
  [[nodiscard]] std::vector<std::size_t> places_of(
      const std::vector<std::string>& names) const;
  /// Throws ConfigError naming the line of the row.
  [[noreturn]] void fail_in_row(std::int64_t row, const std::string& what)
      const;

 private:
  void find_rows();
  void require_text(std::size_t offset, std::string_view row) const;
  [[nodiscard]] std::size_t row_at(std::int64_t row) const;
  [[noreturn]] void fail(std::size_t offset, const std::string& what) const;

  CsvFormat format_;
  TextFile file_;
  std::vector<std::string> columns_;
  /// Where each row begins in the text.
  std::vector<std::uint64_t> rows_;
};

}  // namespace accelerate::detail
