#include <accelerate/json_lines.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "data/datasets/nested_numbers.h"

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
    state_->fail(key, format("is {}, not a string", json_type_of(value)));
  return value.get<std::string>();
}

std::int64_t JsonRecord::integer(const std::string& key) const {
  const json& value = state_->value(key);
  const bool fits = value.is_number_integer() &&
      !(value.is_number_unsigned() &&
        value.get<std::uint64_t>() >
            std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits) state_->fail(key, "is not a whole number of 64 bits");
  return value.get<std::int64_t>();
}

double JsonRecord::number(const std::string& key) const {
  const json& value = state_->value(key);
  if (!value.is_number())
    state_->fail(key, format("is {}, not a number", json_type_of(value)));
  return value.get<double>();
}

bool JsonRecord::boolean(const std::string& key) const {
  const json& value = state_->value(key);
  if (!value.is_boolean()) {
    state_->fail(key, format("is {}, not true or false", json_type_of(value)));
  }
  return value.get<bool>();
}

std::vector<std::string> JsonRecord::texts(const std::string& key) const {
  const json& value = state_->value(key);
  std::vector<std::string> strings;
  for (const json& item : value.is_array() ? value : json::array({nullptr})) {
    if (!item.is_string()) state_->fail(key, "is not a list of strings");
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

namespace {

template <class Number>
std::optional<at::Tensor> to_tensor(
    const json& value,
    const std::vector<std::int64_t>& sizes,
    at::ScalarType parsed_dtype,
    at::ScalarType dtype) {
  auto numbers = detail::numbers_in_lists<Number>(
      value, sizes, /*takes_unsigned=*/dtype == at::kUInt64);
  if (!numbers) return std::nullopt;
  return at::from_blob(
             numbers->data(), sizes, at::TensorOptions().dtype(parsed_dtype))
      .to(dtype, false, true);
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
            "has more than {} lists inside each other; a tensor has at most "
            "that many dimensions",
            detail::kMostDimensions));
  }
  // A double would lose digits of 64-bit integers.
  const bool is_integral = at::isIntegralType(dtype, /*includeBool=*/true);
  const std::optional<at::Tensor> tensor = is_integral
      ? to_tensor<std::int64_t>(value, *sizes, at::kLong, dtype)
      : to_tensor<double>(value, *sizes, at::kDouble, dtype);
  if (!tensor) {
    state_->fail(
        key,
        format(
            "is not a {} or a list of them, nested with equal lengths",
            is_integral ? "whole number of 64 bits" : "number"));
  }
  return *tensor;
}

std::string JsonRecord::place() const {
  return state_->file.place(state_->index);
}

struct JsonLinesFile::State {
  std::string path;
  detail::MappedFile mapping;
  std::string_view text;
  std::vector<std::uint64_t> lines;

  // The line number, which includes blank lines, is computed here.
  [[nodiscard]] std::string place_of(std::int64_t index) const {
    const auto begin =
        static_cast<std::ptrdiff_t>(lines[static_cast<std::size_t>(index)]);
    return format(
        "{}:{}",
        path,
        1 + std::count(text.begin(), text.begin() + begin, '\n'));
  }

  explicit State(const std::string& file) : path(file), mapping(file) {
    text = {
        reinterpret_cast<const char*>(mapping.bytes().data()),
        mapping.bytes().size()};
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (!detail::trim(text.substr(at, end - at)).empty()) lines.push_back(at);
      at = end + 1;
    }
  }
};

JsonLinesFile::JsonLinesFile(const std::string& path)
    : state_(std::make_shared<const State>(path)) {}

std::int64_t JsonLinesFile::size() const {
  return static_cast<std::int64_t>(state_->lines.size());
}

std::string_view JsonLinesFile::line(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw ConfigError(format(
        "[data] {} has {} lines and no line {}", state_->path, size(), index));
  }
  const std::size_t begin = state_->lines[static_cast<std::size_t>(index)];
  return detail::trim(
      state_->text.substr(begin, state_->text.find('\n', begin) - begin));
}

std::string JsonLinesFile::place(std::int64_t index) const {
  static_cast<void>(line(index));  // throws if the line does not exist
  return state_->place_of(index);
}

JsonRecord JsonLinesFile::record(std::int64_t index) const {
  const std::string_view text = line(index);
  detail::ParsedJson parsed = detail::parse_json(text);
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
        "[data] {}: a line of a JSON lines file is an object, this is {}",
        place(index),
        json_type_of(state->object)));
  }
  return JsonRecord(std::move(state));
}

}  // namespace accelerate
