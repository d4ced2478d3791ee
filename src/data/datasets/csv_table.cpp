#include "data/datasets/csv_table.h"

#include <algorithm>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// A longer list of columns is shortened in messages.
constexpr std::size_t kMostListedBytes = 2000;

// Reads the field at `at` into `text`, without its quotes, and moves `at` past
// it. Returns false if a quote is not closed.
bool take_field(
    std::string_view file,
    std::size_t& at,
    char delimiter,
    std::string& text) {
  text.clear();
  if (at < file.size() && file[at] == '"') {
    for (++at; at < file.size(); ++at) {
      if (file[at] == '"') {
        if (at + 1 >= file.size() || file[at + 1] != '"') break;
        ++at;
      }
      text += file[at];
    }
    if (at >= file.size()) return false;
    ++at;
  }
  const std::size_t begin = at;
  while (at < file.size() && file[at] != delimiter && file[at] != '\n' &&
         file[at] != '\r')
    ++at;
  text += file.substr(begin, at - begin);
  return true;
}

// Moves `at` past the end of a field. Returns true if another field of the same
// row follows.
bool next_field(std::string_view file, std::size_t& at, char delimiter) {
  if (at >= file.size()) return false;
  if (file[at] == delimiter) {
    ++at;
    return true;
  }
  at += line_end_at(file, at);
  return false;
}

// Whether all bytes are ASCII and not 0, as most files' are.
bool is_plain(std::string_view text) {
  bool is_plain = true;
  for (const char c : text) is_plain &= static_cast<signed char>(c) > 0;
  return is_plain;
}

void require_delimiter(const std::string& path, char delimiter) {
  if (delimiter != '"' && delimiter != '\n' && delimiter != '\r' &&
      delimiter != '\0')
    return;
  throw ConfigError(format(
      "[data] the delimiter of {} must not be a quote, the end of a line or "
      "0, but is '{}'",
      path,
      printable(std::string_view(&delimiter, 1))));
}

}  // namespace

CsvTable::CsvTable(const std::string& path, const CsvFormat& csv)
    : format_(csv), file_(path) {
  require_delimiter(path, format_.delimiter);
  find_rows();
}

void CsvTable::find_rows() {
  const std::string_view text = file_.text();
  std::string field;
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t end = line_end_at(text, at); end > 0) {
      at += end;
      continue;
    }
    const std::size_t row = at;
    const bool is_first = columns_.empty();
    std::size_t num_fields = 0;
    do {
      if (!take_field(text, at, format_.delimiter, field)) {
        fail(row, "a quote is opened in this row and not closed");
      }
      if (is_first) columns_.push_back(field);
      ++num_fields;
    } while (next_field(text, at, format_.delimiter));
    require_text(row, text.substr(row, at - row));
    if (num_fields != columns_.size()) {
      fail(
          row,
          format(
              "this row has {} fields, but the first has {}",
              num_fields,
              columns_.size()));
    }
    if (!is_first || !format_.has_header) rows_.push_back(row);
  }
  if (format_.has_header) return;
  for (std::size_t i = 0; i < columns_.size(); ++i)
    columns_[i] = std::to_string(i);
}

void CsvTable::require_text(std::size_t at, std::string_view row) const {
  if (is_plain(row)) return;
  if (row.find('\0') != std::string_view::npos) {
    fail(
        at,
        "this row has a zero byte; if the file is UTF-16, convert it: iconv "
        "-f UTF-16 -t UTF-8");
  }
  if (!is_utf8(row)) {
    fail(
        at,
        "this row is not UTF-8; convert the file, for instance: iconv -f "
        "ISO-8859-1 -t UTF-8");
  }
}

std::vector<std::string> CsvTable::fields_of(
    std::string_view text,
    std::int64_t row) const {
  std::vector<std::string> fields;
  std::size_t at = row_at(row);
  do {
    take_field(text, at, format_.delimiter, fields.emplace_back());
  } while (next_field(text, at, format_.delimiter));
  return fields;
}

std::vector<std::size_t> CsvTable::places_of(
    const std::vector<std::string>& names) const {
  std::vector<std::size_t> places;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(columns_, name);
    if (found == columns_.end()) {
      const auto meant = nearest(name, columns_);
      throw ConfigError(format(
          "[data] {} has no column '{}'; it has {}{}",
          path(),
          name,
          printable(join(columns_, ", "), kMostListedBytes),
          meant ? format("; was '{}' meant?", printable(*meant)) : ""));
    }
    if (std::find(found + 1, columns_.end(), name) != columns_.end()) {
      throw ConfigError(format(
          "[data] {} has more than one column '{}'; give them different names, "
          "or read it with has_header = false",
          path(),
          printable(name)));
    }
    places.push_back(static_cast<std::size_t>(found - columns_.begin()));
  }
  return places;
}

void CsvTable::fail_in_row(std::int64_t row, const std::string& what) const {
  fail(row_at(row), what);
}

std::size_t CsvTable::row_at(std::int64_t row) const {
  if (row < 0 || row >= num_rows()) {
    throw ConfigError(format(
        "[data] {} has {} rows, but no row {}", path(), rows_.size(), row));
  }
  return rows_[static_cast<std::size_t>(row)];
}

void CsvTable::fail(std::size_t offset, const std::string& what) const {
  throw ConfigError(
      format("[data] {}:{}: {}", path(), file_.line_at(offset), what));
}

}  // namespace accelerate::detail
