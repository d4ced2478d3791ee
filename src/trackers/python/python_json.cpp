#include "trackers/python/python_json.h"

#include <cmath>
#include <cstdint>
#include <variant>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

namespace {

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(
      -1, ' ', true, nlohmann::json::error_handler_t::replace);
}

struct PythonJson {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(std::int64_t whole) const {
    return std::to_string(whole);
  }
  std::string operator()(double real) const {
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
    return TrackedValue(real).str();
  }
  std::string operator()(const std::string& text) const {
    return json_string(text);
  }
  std::string operator()(const TrackedValue::List& list) const {
    std::string result = "[";
    for (const TrackedValue& each : list) {
      if (result.size() > 1) result += ", ";
      result += python_json(each);
    }
    return result + "]";
  }
  std::string operator()(const TrackedValues& values) const {
    std::string result = "{";
    for (const NamedValue& each : values) {
      if (result.size() > 1) result += ", ";
      result += json_string(each.name) + ": " + python_json(each.value);
    }
    return result + "}";
  }
};

}  // namespace

std::string python_json(const TrackedValue& value) {
  return std::visit(PythonJson{}, value.content());
}

}  // namespace accelerate::detail
