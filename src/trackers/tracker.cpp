#include <accelerate/tracker.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

const TrackedValues& TrackedItem::options(std::string_view tracker) const {
  static const TrackedValues kNone;
  if (!kwargs) return kNone;
  const auto own = kwargs->find(tracker);
  return own == kwargs->end() ? kNone : own->second;
}

GeneralTracker::~GeneralTracker() = default;

bool GeneralTracker::requires_logging_directory() const { return false; }

bool GeneralTracker::main_process_only() const { return true; }

void GeneralTracker::start() {}

void GeneralTracker::store_init_configuration(const TrackedValues&) {}

void GeneralTracker::log(
    const TrackedValues&,
    const LogTime&,
    const TrackedValues&) {}

bool GeneralTracker::log_item(const TrackedItem& item) {
  if (const auto* config = std::get_if<TrackedConfig>(&item.content)) {
    store_init_configuration(config->values);
    return true;
  }
  const auto* const values = std::get_if<TrackedValues>(&item.content);
  if (values) log(*values, item.time, item.options(name()));
  return values != nullptr;
}

void GeneralTracker::flush() {}

void GeneralTracker::finish() {}

std::any GeneralTracker::tracker() { return {}; }

bool GeneralTracker::log_images(
    const std::string& item_name,
    TrackedImages images,
    const LogTime& time,
    const TrackedValues& options) {
  return log_named(item_name, std::move(images), time, options);
}

bool GeneralTracker::log_table(
    const std::string& item_name,
    TrackedTable table,
    const LogTime& time,
    const TrackedValues& options) {
  return log_named(item_name, std::move(table), time, options);
}

bool GeneralTracker::log_histogram(
    const std::string& item_name,
    TrackedHistogram histogram,
    const LogTime& time,
    const TrackedValues& options) {
  return log_named(item_name, std::move(histogram), time, options);
}

bool GeneralTracker::log_figure(
    const std::string& item_name,
    std::string svg,
    const LogTime& time,
    const TrackedValues& options) {
  return log_named(item_name, TrackedFigure{std::move(svg)}, time, options);
}

bool GeneralTracker::log_artifact(
    const std::string& path,
    const std::string& directory) {
  return log_item({.content = TrackedArtifact{path, directory}});
}

bool GeneralTracker::log_named(
    const std::string& item_name,
    TrackedItem::Content content,
    const LogTime& time,
    const TrackedValues& options) {
  TrackedItem item{time, std::move(content), item_name};
  if (!options.empty()) {
    item.kwargs =
        std::make_shared<const TrackerKwargs>(TrackerKwargs{{name(), options}});
  }
  return log_item(item);
}

namespace {

// Python writes numbers without an exponent from 1e-4 up to 1e16.
constexpr int kLeastExponent = -4;
constexpr int kMostExponent = 16;

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const auto write = [&](std::chars_format how) {
    const auto end =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, how);
    return std::string(buffer.data(), end.ptr);
  };
  std::string text = write(std::chars_format::scientific);
  const std::size_t mark = text.find('e');
  int exponent = 0;
  const char* const digits = text.data() + mark + 1;
  std::from_chars(
      digits + (*digits == '+' ? 1 : 0), text.data() + text.size(), exponent);
  if (exponent < kLeastExponent || exponent >= kMostExponent) return text;
  text = write(std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

// Python's repr() of a text: in single quotes, or in double quotes if it
// contains only single ones.
std::string quoted(const std::string& text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  const bool holds_single = text.find('\'') != std::string::npos;
  const char quote =
      holds_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == quote || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (letter == '\n') {
      result += "\\n";
    } else if (letter == '\r') {
      result += "\\r";
    } else if (letter == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\x";
      result += kHexDigits[byte >> 4U];
      result += kHexDigits[byte & 15U];
    } else {
      result += letter;
    }
  }
  return result + quote;
}

std::string repr(const TrackedValue& value) {
  const std::string* const text = value.text();
  return text ? quoted(*text) : value.str();
}

}  // namespace

TrackedValue::TrackedValue() = default;

TrackedValue::TrackedValue(const TrackedValue& other) = default;

TrackedValue::TrackedValue(TrackedValue&& other) noexcept = default;

TrackedValue& TrackedValue::operator=(const TrackedValue& other) = default;

TrackedValue& TrackedValue::operator=(TrackedValue&& other) noexcept = default;

TrackedValue::~TrackedValue() = default;

TrackedValue::TrackedValue(const char* value) : content_(std::string(value)) {}

TrackedValue::TrackedValue(std::string_view value)
    : content_(std::string(value)) {}

TrackedValue::TrackedValue(std::string value) : content_(std::move(value)) {}

TrackedValue::TrackedValue(List value) : content_(std::move(value)) {}

TrackedValue::TrackedValue(Map value) : content_(std::move(value)) {}

TrackedValue::TrackedValue(std::initializer_list<NamedValue> values)
    : content_(Map(values)) {}

// Written out, since clang 14 crashes when it completes the default.
bool TrackedValue::operator==(const TrackedValue& other) const {
  return content_ == other.content_;
}

std::int64_t TrackedValue::whole(std::uint64_t value) {
  if (value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    return static_cast<std::int64_t>(value);
  throw ConfigError(detail::format(
      "[trackers] integers for trackers must fit into int64, but one is {}; "
      "log it as a real number or a text",
      value));
}

std::optional<double> TrackedValue::number() const {
  if (const bool* const truth = std::get_if<bool>(&content_))
    return *truth ? 1.0 : 0.0;
  if (const auto* const whole = std::get_if<std::int64_t>(&content_))
    return static_cast<double>(*whole);
  if (const double* const real = std::get_if<double>(&content_)) return *real;
  return std::nullopt;
}

const std::string* TrackedValue::text() const {
  return std::get_if<std::string>(&content_);
}

const TrackedValue::Map* TrackedValue::map() const {
  return std::get_if<Map>(&content_);
}

std::string TrackedValue::str() const {
  return std::visit(
      [](const auto& content) -> std::string {
        using Kind = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Kind, std::monostate>) {
          return "None";
        } else if constexpr (std::is_same_v<Kind, bool>) {
          return content ? "True" : "False";
        } else if constexpr (std::is_same_v<Kind, std::int64_t>) {
          return std::to_string(content);
        } else if constexpr (std::is_same_v<Kind, double>) {
          return float_text(content);
        } else if constexpr (std::is_same_v<Kind, std::string>) {
          return content;
        } else {
          std::string items;
          for (const auto& each : content) {
            if (!items.empty()) items += ", ";
            if constexpr (std::is_same_v<Kind, Map>) {
              items += quoted(each.name) + ": " + repr(each.value);
            } else {
              items += repr(each);
            }
          }
          return std::is_same_v<Kind, Map> ? "{" + items + "}"
                                           : "[" + items + "]";
        }
      },
      content_);
}

}  // namespace accelerate
