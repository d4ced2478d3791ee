#include <accelerate/csv_dataset.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;

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
  const auto ends = [&](char c) { return c == delimiter || c == '\n'; };
  const std::size_t begin = at;
  while (at < file.size() && !ends(file[at])) ++at;
  text += file.substr(begin, at - begin);
  const bool ends_line = at >= file.size() || file[at] == '\n';
  if (ends_line && !text.empty() && text.back() == '\r' && at > begin)
    text.pop_back();
  return true;
}

// Moves `at` past the end of a field. Returns true if another field of the same
// row follows.
bool next_field(std::string_view file, std::size_t& at, char delimiter) {
  if (at >= file.size()) return false;
  return file[at++] == delimiter;
}

}  // namespace

// A longer list of columns is shortened in messages.
constexpr std::size_t kMostListedBytes = 2000;

struct CsvFile::State {
  std::string path;
  CsvOptions options;
  detail::MappedFile mapping;
  std::string_view text;
  std::vector<std::string> columns;
  std::vector<std::uint64_t> rows;

  State(const std::string& file, const CsvOptions& csv_options)
      : path(file), options(csv_options), mapping(file) {
    text = {
        reinterpret_cast<const char*>(mapping.bytes().data()),
        mapping.bytes().size()};
    find_rows();
  }

  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    const auto line =
        1 +
        std::count(
            text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw ConfigError(format("[data] {}:{}: {}", path, line, what));
  }

  void find_rows() {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    std::size_t at =
        text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    std::string field;
    while (at < text.size()) {
      const std::size_t row = at;
      const bool is_first = columns.empty();
      std::size_t num_fields = 0;
      do {
        if (!take_field(text, at, options.delimiter, field)) {
          fail(row, "a quote is opened in this row and not closed");
        }
        if (is_first) columns.push_back(field);
        ++num_fields;
      } while (next_field(text, at, options.delimiter));
      if (num_fields == 1 && field.empty()) {
        if (is_first) columns.clear();
        continue;
      }
      if (num_fields != columns.size()) {
        fail(
            row,
            format(
                "this row has {} fields and the first has {}",
                num_fields,
                columns.size()));
      }
      if (!is_first || !options.has_header) rows.push_back(row);
    }
    if (options.has_header) return;
    for (std::size_t i = 0; i < columns.size(); ++i)
      columns[i] = std::to_string(i);
  }

  [[nodiscard]] std::size_t row_at(std::int64_t index) const {
    if (index < 0 || index >= static_cast<std::int64_t>(rows.size())) {
      throw ConfigError(format(
          "[data] {} has {} rows and no row {}", path, rows.size(), index));
    }
    return rows[static_cast<std::size_t>(index)];
  }

  [[nodiscard]] std::vector<std::size_t> places_of(
      const std::vector<std::string>& names) const {
    std::vector<std::size_t> places;
    for (const std::string& name : names) {
      const auto found = std::find(columns.begin(), columns.end(), name);
      if (found == columns.end()) {
        const auto meant = detail::nearest(name, columns);
        throw ConfigError(format(
            "[data] {} has no column '{}'; it has {}{}",
            path,
            name,
            detail::printable(detail::join(columns, ", "), kMostListedBytes),
            meant ? format("; was '{}' meant?", detail::printable(*meant))
                  : ""));
      }
      places.push_back(static_cast<std::size_t>(found - columns.begin()));
    }
    return places;
  }

  [[nodiscard]] std::vector<std::string> fields_of(std::int64_t index) const {
    std::vector<std::string> fields;
    std::size_t at = row_at(index);
    do {
      take_field(text, at, options.delimiter, fields.emplace_back());
    } while (next_field(text, at, options.delimiter));
    return fields;
  }

  template <class Number>
  [[nodiscard]] Number parse(
      const std::string& field,
      std::int64_t row,
      std::size_t column,
      std::string_view kind) const {
    std::string_view trimmed = detail::trim(field);
    if (trimmed.starts_with('+')) trimmed.remove_prefix(1);
    if constexpr (std::is_floating_point_v<Number>) {
      if (trimmed.empty()) return std::numeric_limits<Number>::quiet_NaN();
      if (const auto value = detail::parse_double(trimmed))
        return static_cast<Number>(*value);
    } else if constexpr (std::is_same_v<Number, bool>) {
      const std::string lower = detail::to_lower(trimmed);
      if (lower == "0" || lower == "false") return false;
      if (lower == "1" || lower == "true") return true;
    } else {
      const auto value = detail::parse_int(trimmed);
      if (value && *value >= std::numeric_limits<Number>::min() &&
          *value <=
              static_cast<long long>(std::numeric_limits<Number>::max())) {
        return static_cast<Number>(*value);
      }
    }
    fail(
        row_at(row),
        format(
            "column '{}': '{}' is not a {}",
            detail::printable(columns[column]),
            detail::printable(field),
            kind));
  }

  [[nodiscard]] at::Tensor numbers(
      const std::vector<std::string>& names,
      at::ScalarType dtype,
      std::int64_t num_rows,
      const auto& row_of) const {
    const std::vector<std::size_t> places = places_of(names);
    const auto width = static_cast<std::int64_t>(places.size());
    at::Tensor result =
        at::empty({num_rows, width}, at::TensorOptions().dtype(dtype));
    const auto fill = [&]<class Number>(Number* out, std::string_view kind) {
      for (std::int64_t i = 0; i < num_rows; ++i) {
        const std::vector<std::string> fields = fields_of(row_of(i));
        for (const std::size_t place : places) {
          *out++ = parse<Number>(fields[place], row_of(i), place, kind);
        }
      }
    };
    switch (dtype) {
      case at::kFloat:
        fill(result.mutable_data_ptr<float>(), "number");
        break;
      case at::kDouble:
        fill(result.mutable_data_ptr<double>(), "number");
        break;
      case at::kByte:
        fill(result.mutable_data_ptr<std::uint8_t>(), "whole number of 8 bits");
        break;
      case at::kShort:
        fill(
            result.mutable_data_ptr<std::int16_t>(), "whole number of 16 bits");
        break;
      case at::kInt:
        fill(
            result.mutable_data_ptr<std::int32_t>(), "whole number of 32 bits");
        break;
      case at::kLong:
        fill(result.mutable_data_ptr<std::int64_t>(), "whole number");
        break;
      case at::kBool:
        fill(result.mutable_data_ptr<bool>(), "boolean (0, 1, true, false)");
        break;
      default:
        throw ConfigError(format(
            "[data] numbers of {} were asked for as {}; possible are Float, "
            "Double, Byte, Short, Int, Long and Bool",
            path,
            dtype));
    }
    return result;
  }
};

CsvFile::CsvFile(const std::string& path, const CsvOptions& options)
    : state_(std::make_shared<const State>(path, options)) {}

std::int64_t CsvFile::num_rows() const {
  return static_cast<std::int64_t>(state_->rows.size());
}

const std::vector<std::string>& CsvFile::columns() const {
  return state_->columns;
}

std::vector<std::string> CsvFile::row(std::int64_t index) const {
  return state_->fields_of(index);
}

at::Tensor CsvFile::numbers(
    const std::vector<std::string>& columns,
    at::ScalarType dtype) const {
  return state_->numbers(
      columns, dtype, num_rows(), [](std::int64_t i) { return i; });
}

at::Tensor CsvFile::numbers(
    const std::vector<std::string>& columns,
    at::ScalarType dtype,
    std::span<const std::int64_t> rows) const {
  return state_->numbers(
      columns,
      dtype,
      static_cast<std::int64_t>(rows.size()),
      [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; });
}

std::vector<std::string> CsvFile::texts(const std::string& column) const {
  const std::size_t place = state_->places_of({column}).front();
  std::vector<std::string> strings;
  for (std::int64_t i = 0; i < num_rows(); ++i) {
    strings.push_back(std::move(state_->fields_of(i)[place]));
  }
  return strings;
}

Categories CsvFile::categories(const std::string& column) const {
  const std::vector<std::string> values = texts(column);
  std::map<std::string, std::int64_t> codes;
  for (const std::string& value : values) codes.emplace(value, 0);
  Categories result;
  for (auto& [name, code] : codes) {
    code = static_cast<std::int64_t>(result.names.size());
    result.names.push_back(name);
  }
  result.codes = at::empty({num_rows()}, at::kLong);
  auto* out = result.codes.mutable_data_ptr<std::int64_t>();
  for (const std::string& value : values) *out++ = codes[value];
  return result;
}

CsvDataset::CsvDataset(const std::string& path, CsvDatasetOptions options)
    : file_(path, options.csv), options_(std::move(options)) {
  // Throws for columns that are not in the file.
  static_cast<void>(get_batch({}));
}

std::tuple<at::Tensor, at::Tensor> CsvDataset::get_batch(
    std::span<const std::int64_t> indices) const {
  return {
      file_.numbers(options_.inputs, options_.input_dtype, indices),
      file_.numbers(options_.targets, options_.target_dtype, indices)};
}

}  // namespace accelerate
