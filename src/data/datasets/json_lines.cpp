#include <accelerate/json_lines.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "data/datasets/json_constants.h"
#include "data/datasets/nested_numbers.h"
#include "data/datasets/text_file.h"

namespace accelerate {

using detail::format;
using nlohmann::json;

namespace {

// The type of the value in messages: "a number", "an array", "null".
std::string json_type_of(const json& value) {
  if (value.is_null()) return "null";
  const bool has_vowel = value.is_array() || value.is_object();
  return format("{} {}", has_vowel ? "an" : "a", value.type_name());
}

}  // namespace

struct JsonRecord::State {
  JsonLinesFile file;
  std::int64_t index;
  json object = {};

  [[noreturn]] void fail(const std::string& key, const std::string& what)
      const {
    throw ConfigError(
        format("[data] {}: '{}' {}", file.place(index), key, what));
  }
  [[nodiscard]] const json& value(const std::string& key) const {
    const auto found = object.find(key);
    if (found == object.end()) fail(key, "is missing");
    return *found;
  }
};

JsonRecord::JsonRecord(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
JsonRecord::JsonRecord(JsonRecord&&) noexcept = default;
JsonRecord& JsonRecord::operator=(JsonRecord&&) noexcept = default;
JsonRecord::~JsonRecord() = default;

bool JsonRecord::contains(const std::string& key) const {
  return state_->object.contains(key);
}

std::string JsonRecord::text(const std::string& key) const {
  const json& value = state_->value(key);
  if (!value.is_string())
    state_->fail(
        key, format("must be a string, but is {}", json_type_of(value)));
  return value.get<std::string>();
}

std::int64_t JsonRecord::integer(const std::string& key) const {
  const json& value = state_->value(key);
  const bool fits = value.is_number_integer() &&
      !(value.is_number_unsigned() &&
        value.get<std::uint64_t>() >
            std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits) state_->fail(key, "must be a 64-bit integer, but is not");
  return value.get<std::int64_t>();
}

double JsonRecord::number(const std::string& key) const {
  const json& value = state_->value(key);
  if (!value.is_number())
    state_->fail(
        key, format("must be a number, but is {}", json_type_of(value)));
  return value.get<double>();
}

bool JsonRecord::boolean(const std::string& key) const {
  const json& value = state_->value(key);
  if (!value.is_boolean()) {
    state_->fail(
        key, format("must be true or false, but is {}", json_type_of(value)));
  }
  return value.get<bool>();
}

std::vector<std::string> JsonRecord::texts(const std::string& key) const {
  const json& value = state_->value(key);
  std::vector<std::string> strings;
  for (const json& item : value.is_array() ? value : json::array({nullptr})) {
    if (!item.is_string())
      state_->fail(key, "must be a list of strings, but is not");
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

namespace {

// Nothing for dtypes that are not integral.
std::optional<detail::IntegerRange> range_of(at::ScalarType dtype) {
  const auto all_of = []<class Number>(Number) {
    return detail::IntegerRange{
        static_cast<std::int64_t>(std::numeric_limits<Number>::min()),
        static_cast<std::uint64_t>(std::numeric_limits<Number>::max())};
  };
  switch (dtype) {
    case at::kBool:
      return detail::IntegerRange{0, 1};
    case at::kByte:
      return all_of(std::uint8_t{});
    case at::kChar:
      return all_of(std::int8_t{});
    case at::kShort:
      return all_of(std::int16_t{});
    case at::kInt:
      return all_of(std::int32_t{});
    case at::kLong:
      return all_of(std::int64_t{});
    case at::kUInt16:
      return all_of(std::uint16_t{});
    case at::kUInt32:
      return all_of(std::uint32_t{});
    case at::kUInt64:
      return all_of(std::uint64_t{});
    default:
      return std::nullopt;
  }
}

// The kind of number, in messages, of a dtype whose integers have this range.
std::string kind_of(at::ScalarType dtype, const detail::IntegerRange& range) {
  if (dtype == at::kLong) return "whole number of 64 bits";
  return format("whole number from {} to {}", range.least, range.most);
}

template <class Number>
at::Tensor tensor_of(
    std::vector<Number>& numbers,
    const std::vector<std::int64_t>& sizes,
    at::ScalarType parsed_dtype,
    at::ScalarType dtype) {
  return at::from_blob(
             numbers.data(), sizes, at::TensorOptions().dtype(parsed_dtype))
      .to(dtype, false, true);
}

// Numbers of a float8 dtype round to less than this. LibTorch 2.15 sets larger
// ones to the largest that there is. Infinity for other dtypes.
double limit_of_float8(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return 464;
    case at::kFloat8_e4m3fnuz:
      return 248;
    case at::kFloat8_e5m2:
    case at::kFloat8_e5m2fnuz:
      return 61440;
    default:
      return std::numeric_limits<double>::infinity();
  }
}

// The first number that is finite as a double, but not in `tensor`.
std::optional<double> find_overflow(
    const std::vector<double>& numbers,
    const at::Tensor& tensor) {
  // All dtypes hold numbers up to this.
  constexpr double kSmall = 240;
  const bool are_small = std::ranges::all_of(numbers, [](double number) {
    return !(std::abs(number) > kSmall) || std::isinf(number);
  });
  if (are_small || tensor.scalar_type() == at::kDouble) return std::nullopt;
  const at::Tensor converted = tensor.to(
      at::isComplexType(tensor.scalar_type()) ? at::kComplexDouble
                                              : at::kDouble);
  const at::Tensor is_finite = at::isfinite(converted).flatten();
  const bool* const finite = is_finite.const_data_ptr<bool>();
  const double limit = limit_of_float8(tensor.scalar_type());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool fits = finite[i] && std::abs(numbers[i]) < limit;
    if (std::isfinite(numbers[i]) && !fits) return numbers[i];
  }
  return std::nullopt;
}

}  // namespace

at::Tensor JsonRecord::tensor(const std::string& key, at::ScalarType dtype)
    const {
  const json& value = state_->value(key);
  const auto sizes = detail::shape_of_lists(value);
  if (!sizes) {
    state_->fail(
        key,
        format(
            "must have at most {} levels of lists, the most dimensions of a "
            "tensor, but has more",
            detail::kMostDimensions));
  }
  const auto refuse = [&](const std::string& kind) {
    state_->fail(
        key,
        format(
            "must be a {} or lists of them, nested with "
            "equal lengths, but is not",
            kind));
  };
  // A double would lose digits of 64-bit integers.
  if (const auto range = range_of(dtype)) {
    auto integers = detail::integers_in_lists(value, *sizes, *range);
    if (!integers) refuse(kind_of(dtype, *range));
    return tensor_of(*integers, *sizes, at::kLong, dtype);
  }
  auto numbers = detail::numbers_in_lists(value, *sizes);
  if (!numbers) refuse("number");
  at::Tensor tensor = tensor_of(*numbers, *sizes, at::kDouble, dtype);
  if (const auto large = find_overflow(*numbers, tensor)) {
    state_->fail(
        key, format("has {}, which is too large for {}", *large, dtype));
  }
  return tensor;
}

std::string JsonRecord::place() const {
  return state_->file.place(state_->index);
}

struct JsonLinesFile::State {
  detail::TextFile file;
  std::vector<std::uint64_t> lines;

  // The line number, which includes blank lines, is computed here.
  [[nodiscard]] std::string place_of(std::int64_t index) const {
    const std::uint64_t begin = lines[static_cast<std::size_t>(index)];
    return format("{}:{}", file.path(), file.line_at(begin));
  }

  explicit State(const std::string& path) : file(path) {
    const std::string_view text = file.text();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end =
          std::min(text.find_first_of(kLineEnds, at), text.size());
      if (!detail::trim(text.substr(at, end - at)).empty()) lines.push_back(at);
      at = end + 1;
    }
  }

  // A CR in a line would not be JSON.
  static constexpr std::string_view kLineEnds = "\r\n";
};

JsonLinesFile::JsonLinesFile(const std::string& path)
    : state_(std::make_shared<const State>(path)) {}

std::int64_t JsonLinesFile::size() const {
  return static_cast<std::int64_t>(state_->lines.size());
}

std::string_view JsonLinesFile::line(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw ConfigError(format(
        "[data] {} has {} lines, but no line {}",
        state_->file.path(),
        size(),
        index));
  }
  const std::string_view text = state_->file.text();
  const std::size_t begin = state_->lines[static_cast<std::size_t>(index)];
  return detail::trim(
      text.substr(begin, text.find_first_of(State::kLineEnds, begin) - begin));
}

std::string JsonLinesFile::place(std::int64_t index) const {
  static_cast<void>(line(index));  // throws if the line does not exist
  return state_->place_of(index);
}

JsonRecord JsonLinesFile::record(std::int64_t index) const {
  const std::string_view text = line(index);
  detail::ParsedJson parsed = detail::parse_json_of_python(text);
  if (!parsed.complaint.empty()) {
    // The place already names the line.
    std::string_view what = parsed.complaint;
    constexpr std::string_view kOnlyLine = "line 1, ";
    if (what.starts_with(kOnlyLine)) what.remove_prefix(kOnlyLine.size());
    throw ConfigError(format("[data] {}: {}", place(index), what));
  }
  auto state = std::make_unique<JsonRecord::State>(
      JsonRecord::State{*this, index, std::move(parsed.value)});
  if (!state->object.is_object()) {
    throw ConfigError(format(
        "[data] {}: a line of a JSON lines file must be an object, but is {}",
        place(index),
        json_type_of(state->object)));
  }
  return JsonRecord(std::move(state));
}

}  // namespace accelerate
