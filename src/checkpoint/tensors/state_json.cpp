#include "checkpoint/tensors/state_json.h"

#include <cmath>
#include <limits>
#include <variant>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

// Deeper states are refused on reading, before they can overflow the stack.
constexpr int kMostDepth = 100;

Json number(double value) {
  if (std::isfinite(value)) return value;
  return {{"double", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

struct Encoder {
  const std::string& prefix;
  NamedTensors& tensors;

  Json operator()(bool value) const { return value; }
  Json operator()(std::int64_t value) const { return value; }
  Json operator()(double value) const { return number(value); }
  Json operator()(const std::string& value) const {
    // JSON can only hold UTF-8.
    if (is_utf8(value)) return value;
    return {{"bytes", hexadecimal(value)}};
  }
  Json operator()(const std::vector<std::int64_t>& values) const {
    return {{"integers", values}};
  }
  Json operator()(const std::vector<double>& values) const {
    Json list = Json::array();
    for (const double value : values) list.push_back(number(value));
    return {{"doubles", std::move(list)}};
  }
  Json operator()(const at::Tensor& tensor) const {
    if (!tensor.defined()) return {{"tensor", nullptr}};
    tensors[prefix] = tensor;
    return {{"tensor", prefix}};
  }
  Json operator()(const StateDict& state) const {
    return {{"state", to_json(state, prefix, tensors)}};
  }
  Json operator()(const std::vector<StateDict>& states) const {
    Json list = Json::array();
    for (std::size_t i = 0; i < states.size(); ++i) {
      list.push_back(to_json(states[i], format("{}/{}", prefix, i), tensors));
    }
    return {{"states", std::move(list)}};
  }
};

class Decoder {
 public:
  Decoder(
      const std::string& what,
      const std::function<at::Tensor(const std::string&)>& tensor_of)
      : what_(what), tensor_of_(tensor_of) {}

  [[nodiscard]] StateDict state(const Json& json, int depth) const {
    if (!json.is_object() || depth > kMostDepth) fail();
    StateDict state;
    for (const auto& [key, value] : json.items()) {
      state.set(key, this->value(value, depth));
    }
    return state;
  }

 private:
  [[noreturn]] void fail() const {
    throw CheckpointError(
        format("[checkpoint] {} is damaged, or of a newer version", what_));
  }

  [[nodiscard]] double real(const Json& json) const {
    if (json.is_number()) return json.get<double>();
    const std::string text =
        json.is_object() ? json.value("double", std::string()) : "";
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    fail();
  }

  [[nodiscard]] std::string bytes(const Json& json) const {
    if (!json.is_string()) fail();
    const auto& text = json.get_ref<const std::string&>();
    if (text.size() % 2 != 0) fail();
    const auto digit = [&](char c) -> unsigned {
      if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
      if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
      fail();
    };
    std::string value;
    for (std::size_t i = 0; i < text.size(); i += 2) {
      value += static_cast<char>(digit(text[i]) << 4U | digit(text[i + 1]));
    }
    return value;
  }

  [[nodiscard]] StateDict::Value value(const Json& json, int depth) const {
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_integer()) return json.get<std::int64_t>();
    if (json.is_number_float()) return json.get<double>();
    if (json.is_string()) return json.get<std::string>();
    if (!json.is_object() || json.size() != 1) fail();
    const std::string& kind = json.begin().key();
    const Json& inner = json.begin().value();
    if (kind == "double") return real(json);
    if (kind == "bytes") return bytes(inner);
    if (kind == "state") return state(inner, depth + 1);
    if (kind == "tensor") {
      if (inner.is_null()) return at::Tensor();
      if (!inner.is_string()) fail();
      return tensor_of_(inner.get<std::string>());
    }
    if (!inner.is_array()) fail();
    if (kind == "integers") {
      std::vector<std::int64_t> values;
      for (const Json& each : inner) {
        if (!each.is_number_integer()) fail();
        values.push_back(each.get<std::int64_t>());
      }
      return values;
    }
    if (kind == "doubles") {
      std::vector<double> values;
      for (const Json& each : inner) values.push_back(real(each));
      return values;
    }
    if (kind == "states") {
      std::vector<StateDict> states;
      for (const Json& each : inner) states.push_back(state(each, depth + 1));
      return states;
    }
    fail();
  }

  const std::string& what_;
  const std::function<at::Tensor(const std::string&)>& tensor_of_;
};

}  // namespace

Json to_json(
    const StateDict& state,
    const std::string& prefix,
    NamedTensors& tensors) {
  Json json = Json::object();
  for (const auto& [key, value] : state.values()) {
    const std::string name =
        prefix.empty() ? key : format("{}/{}", prefix, key);
    json[key] = std::visit(Encoder{name, tensors}, value);
  }
  return json;
}

StateDict from_json(
    const Json& json,
    const std::string& what,
    const std::function<at::Tensor(const std::string& name)>& tensor_of) {
  return Decoder(what, tensor_of).state(json, 0);
}

}  // namespace accelerate::detail
