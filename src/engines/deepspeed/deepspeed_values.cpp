// The values of a DeepSpeed configuration: finding them, and filling in "auto"
// values.
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/deepspeed/deepspeed.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

bool is_auto(const Json& value) { return value == "auto"; }

bool is_enabled(const Json* value) {
  return value != nullptr &&
      (*value == true || *value == "true" || *value == "True");
}

}  // namespace

void DeepSpeedConfig::set_mixed_precision(std::string_view precision) {
  const bool is_fp16 = precision == "fp16";
  const bool is_bf16 = precision == "bf16" || precision == "fp8";
  if (is_fp16 && !json_.contains("fp16"))
    json_["fp16"] = {{"enabled", true}, {"auto_cast", true}};
  if (is_bf16 && !json_.contains("bf16")) json_["bf16"] = {{"enabled", true}};
  if (precision != "no") {
    const std::string_view other = is_fp16 ? "bf16" : "fp16";
    if (is_enabled(find(format("{}.enabled", other)))) {
      throw ConfigError(format(
          "[config] mixed_precision is {}, but the DeepSpeed configuration "
          "enables {}; change one of them",
          precision,
          other));
    }
  }
  for (const char* const type : {"fp16", "bf16"}) {
    if (!json_.contains(type)) json_[type] = {{"enabled", false}};
  }
  const Json values{{"fp16.enabled", is_fp16}, {"bf16.enabled", is_bf16}};
  fill_one("fp16.enabled", values);
  fill_one("bf16.enabled", values);
}

const Json* DeepSpeedConfig::find(std::string_view dotted_path) const {
  const Json* node = &json_;
  for (const std::string& name : split(dotted_path, '.')) {
    if (!node->is_object()) return nullptr;
    const auto found = node->find(name);
    if (found == node->end()) return nullptr;
    node = &*found;
  }
  return node;
}

void DeepSpeedConfig::fill_one(std::string_view path, const Json& values) {
  auto* const node = const_cast<Json*>(find(path));
  if (node != nullptr) fill_node(path, *node, values);
}

void DeepSpeedConfig::fill_node(
    std::string_view path,
    Json& node,
    const Json& values) {
  if (!is_auto(node)) return;
  const auto value = values.find(std::string(path));
  if (value == values.end()) {
    throw ConfigError(format(
        "[config] {} of the DeepSpeed configuration is \"auto\", but the "
        "program does not determine it; write a value",
        printable(path)));
  }
  node = *value;
}

void DeepSpeedConfig::fill_known(const Json& values) {
  for (const auto& [path, value] : values.items()) fill_one(path, values);
}

std::optional<std::string> DeepSpeedConfig::enabled_precision() const {
  for (const char* const type : {"fp16", "bf16"}) {
    if (is_enabled(find(format("{}.enabled", type)))) return type;
  }
  return std::nullopt;
}

void DeepSpeedConfig::fill(const Json& values, bool must_match) {
  // Keys may contain dots as well, so a path does not lead to its node.
  std::vector<std::pair<std::string, Json*>> nodes;
  const auto collect =
      [&](const auto& self, Json& node, const std::string& path) -> void {
    for (auto& [name, value] : node.items()) {
      const std::string below = format("{}{}", path, name);
      if (value.is_object()) {
        self(self, value, format("{}.", below));
      } else {
        nodes.emplace_back(below, &value);
      }
    }
  };
  collect(collect, json_, "");
  std::vector<std::string> mismatches;
  for (const auto& [path, node] : nodes) {
    const Json before = *node;
    fill_node(path, *node, values);
    const auto value = values.find(path);
    if (must_match && !is_auto(before) && !before.is_null() &&
        value != values.end() && before != *value) {
      mismatches.push_back(format(
          "  {} is {}, but the program has {}",
          printable(path),
          printable(before.dump()),
          value->dump()));
    }
  }
  if (!mismatches.empty()) {
    throw ConfigError(format(
        "[config] the DeepSpeed configuration and the program differ; correct "
        "it, or write \"auto\":\n{}",
        join(mismatches, "\n")));
  }
}

}  // namespace accelerate::detail
