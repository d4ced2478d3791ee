#include <accelerate/csv_dataset.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/datasets/csv_numbers.h"
#include "data/datasets/csv_table.h"

namespace accelerate {

namespace {

using detail::format;

// Whether a double rounds to a finite number of the type, or was not finite.
template <class Number>
bool fits(double value) {
  // Half a unit more than the largest number still rounds to it.
  constexpr double kEnd = std::is_same_v<Number, float> ? 0x1.ffffffp127 : 0;
  return std::is_same_v<Number, double> || !std::isfinite(value) ||
      std::abs(value) < kEnd;
}

}  // namespace

struct CsvFile::State {
  detail::CsvTable table;

  template <class Number>
  [[nodiscard]] Number parse(
      const std::string& field,
      std::int64_t row,
      std::size_t column,
      std::string_view kind) const {
    if constexpr (std::is_floating_point_v<Number>) {
      if (detail::is_missing(field))
        return std::numeric_limits<Number>::quiet_NaN();
      const auto value = detail::decimal_of(field);
      if (value && fits<Number>(*value)) return static_cast<Number>(*value);
    } else if constexpr (std::is_same_v<Number, bool>) {
      const std::string lower = detail::to_lower(detail::trim(field));
      if (lower == "0" || lower == "false") return false;
      if (lower == "1" || lower == "true") return true;
    } else {
      const auto value = detail::integer_of(field);
      if (value && *value >= std::numeric_limits<Number>::min() &&
          *value <=
              static_cast<long long>(std::numeric_limits<Number>::max())) {
        return static_cast<Number>(*value);
      }
    }
    table.fail_in_row(
        row,
        format(
            "column '{}': '{}' is not a {}",
            detail::printable(table.columns()[column]),
            detail::printable(field),
            kind));
  }

  [[nodiscard]] at::Tensor numbers(
      const std::vector<std::string>& names,
      at::ScalarType dtype,
      std::int64_t num_rows,
      const auto& row_of) const {
    const std::vector<std::size_t> places = table.places_of(names);
    const auto width = static_cast<std::int64_t>(places.size());
    const std::string_view text = table.text();
    at::Tensor result =
        at::empty({num_rows, width}, at::TensorOptions().dtype(dtype));
    const auto fill = [&]<class Number>(Number* out, std::string_view kind) {
      for (std::int64_t i = 0; i < num_rows; ++i) {
        const std::vector<std::string> fields =
            table.fields_of(text, row_of(i));
        for (const std::size_t place : places) {
          *out++ = parse<Number>(fields[place], row_of(i), place, kind);
        }
      }
    };
    switch (dtype) {
      case at::kFloat:
        fill(result.mutable_data_ptr<float>(), "number of 32 bits");
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
            "[data] numbers of {} cannot be read as {}; use Float, Double, "
            "Byte, Short, Int, Long or Bool",
            table.path(),
            dtype));
    }
    return result;
  }
};

CsvFile::CsvFile(const std::string& path, const CsvOptions& options)
    : state_(std::make_shared<const State>(State{
          detail::CsvTable(path, {options.delimiter, options.has_header})})) {}

std::int64_t CsvFile::num_rows() const { return state_->table.num_rows(); }

const std::vector<std::string>& CsvFile::columns() const {
  return state_->table.columns();
}

std::vector<std::string> CsvFile::row(std::int64_t index) const {
  return state_->table.fields_of(state_->table.text(), index);
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
  const std::size_t place = state_->table.places_of({column}).front();
  const std::string_view text = state_->table.text();
  std::vector<std::string> strings;
  for (std::int64_t i = 0; i < num_rows(); ++i) {
    strings.push_back(std::move(state_->table.fields_of(text, i)[place]));
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
  // Throw for columns that are not in the file.
  static_cast<void>(get_batch({}));
}

std::tuple<at::Tensor, at::Tensor> CsvDataset::get_batch(
    std::span<const std::int64_t> indices) const {
  return {
      file_.numbers(options_.inputs, options_.input_dtype, indices),
      file_.numbers(options_.targets, options_.target_dtype, indices)};
}

}  // namespace accelerate
