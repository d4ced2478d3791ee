#include "base/text/text.h"
#include "config/files/config_document.h"
#include "config/options/option_table.h"

namespace accelerate::detail {

namespace {

ConfigJson schema_of(const OptionSpec& spec) {
  ConfigJson schema{{"description", spec.help}};
  switch (spec.kind) {
    case OptionKind::boolean:
    case OptionKind::truth:
      schema["type"] = {"boolean", "string"};
      break;
    case OptionKind::integer:
      schema["type"] = "integer";
      break;
    case OptionKind::number:
      schema["type"] = "number";
      break;
    case OptionKind::text:
      schema["type"] = {"string", "number", "boolean", "array", "null"};
      break;
    case OptionKind::choice: {
      ConfigJson choices = ConfigJson::array();
      for (const std::string& choice : split(spec.limits, '|')) {
        choices.push_back(choice);
        const std::string other =
            choice == to_lower(choice) ? to_upper(choice) : to_lower(choice);
        if (other != choice) choices.push_back(other);
        // YAML reads an unquoted NO as a boolean, and digits as a number.
        const ConfigJson bare = yaml_value(choice);
        if (!bare.is_string()) choices.push_back(bare);
      }
      schema["enum"] = std::move(choices);
      break;
    }
  }
  if (!spec.default_value.empty()) schema["default"] = spec.default_value;
  return schema;
}

}  // namespace

std::string config_schema() {
  ConfigJson properties = ConfigJson::object();
  for (const OptionSpec& spec : option_table()) {
    if (spec.section.empty()) {
      // Skips options that apply to a single launch only.
      if (!is_config_key(spec.key)) continue;
      properties[std::string(spec.key)] = schema_of(spec);
      continue;
    }
    ConfigJson& section = properties[std::string(spec.section)];
    if (section.is_null()) {
      section = {
          {"type", "object"},
          {"properties", ConfigJson::object()},
          {"additionalProperties", false}};
    }
    section["properties"][std::string(spec.key)] = schema_of(spec);
  }
  // These maps may also hold keys without their family's prefix.
  for (const char* const open :
       {"fsdp_config", "fp8_config", "dynamo_config", "deepspeed_config"}) {
    properties[open].erase("additionalProperties");
  }
  const ConfigJson schema{
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "Config file of accelerate-cpp and Accelerate"},
      {"type", "object"},
      {"required", {"distributed_type"}},
      {"properties", std::move(properties)},
      {"additionalProperties", false}};
  return schema.dump(2) + "\n";
}

}  // namespace accelerate::detail
