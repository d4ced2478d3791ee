#include "config/files/config_document.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include <yaml-cpp/yaml.h>

#include <accelerate/error.h>

#include "base/files.h"
#include "base/text.h"

namespace accelerate::detail {

namespace {

bool is_one_of(
    std::string_view text,
    std::initializer_list<std::string_view> choices) {
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

class Converter {
 public:
  explicit Converter(ConfigDocument& document) : document_(document) {}

  ConfigJson convert(const YAML::Node& node, const std::string& name) {
    if (node.IsMap()) {
      ConfigJson map = ConfigJson::object();
      for (const auto& entry : node) {
        const auto key = entry.first.as<std::string>();
        const std::string inner =
            name.empty() ? key : format("{}.{}", name, key);
        document_.lines[inner] = entry.first.Mark().line + 1;
        map[key] = convert(entry.second, inner);
      }
      return map;
    }
    if (node.IsSequence()) {
      ConfigJson list = ConfigJson::array();
      for (const auto& entry : node) list.push_back(convert(entry, ""));
      return list;
    }
    if (!node.IsScalar()) return nullptr;
    if (!name.empty()) document_.scalars[name] = node.Scalar();
    const bool is_quoted = node.Tag() == "!";
    return is_quoted ? ConfigJson(node.Scalar()) : yaml_value(node.Scalar());
  }

 private:
  ConfigDocument& document_;
};

}  // namespace

// Follows the types of YAML 1.1, as Accelerate's reader does.
ConfigJson yaml_value(const std::string& scalar) {
  if (is_one_of(scalar, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(
          scalar,
          {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) {
    return true;
  }
  if (is_one_of(
          scalar,
          {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
    return false;
  }
  if (const auto integer = parse_int(scalar)) return *integer;
  // YAML 1.1 reads 1e8, without a dot, as a string.
  const bool has_dot = scalar.find('.') != std::string::npos;
  if (const auto number = parse_double(scalar); number && has_dot)
    return *number;
  return scalar;
}

ConfigDocument parse_config(std::string text, std::filesystem::path path) {
  ConfigDocument document;
  document.path = std::move(path);
  document.text = std::move(text);
  document.is_json = document.path.extension() == ".json" ||
      trim(document.text).starts_with("{");
  YAML::Node root;
  try {
    root = YAML::Load(document.text);
  } catch (const YAML::Exception& error) {
    throw ConfigError(format(
        "[config] file {} does not parse: {}",
        document.path.string(),
        error.what()));
  }
  if (root.IsNull()) return document;
  if (!root.IsMap()) {
    throw ConfigError(format(
        "[config] file {} must hold keys and values, one \"key: value\" per "
        "line",
        document.path.string()));
  }
  document.values = Converter(document).convert(root, "");
  return document;
}

ConfigDocument read_config_document(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) {
    throw ConfigError(format(
        "[config] config file {} does not exist; give the path of one, or "
        "leave --config_file out",
        path));
  }
  return parse_config(read_file(path), path);
}

std::string python_text(const ConfigJson& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
    if (std::isnan(number)) return "nan";
    // The shortest form that reads back, like Python's repr.
    std::string text = ConfigJson(number).dump();
    return text;
  }
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const ConfigJson& item : value) items.push_back(python_text(item));
    return join(items, ",");
  }
  return value.dump();
}

}  // namespace accelerate::detail
