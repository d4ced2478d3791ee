#include "config/files/config_document.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include <yaml-cpp/yaml.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool is_one_of(
    std::string_view text,
    std::initializer_list<std::string_view> choices) {
  return std::ranges::find(choices, text) != choices.end();
}

// Accelerate's files have at most two levels and about a hundred values.
constexpr std::size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxValues = 10'000;
// How much aliases may add to the text of the file.
constexpr std::size_t kMaxAliasBytes = 1 << 16;
// Names longer than any setting's are not kept: a key may be as long as the
// file, and be part of the names of all values in its map.
constexpr std::size_t kMaxNameBytes = 200;

class Converter {
 public:
  explicit Converter(ConfigDocument& document) : document_(document) {}

  ConfigJson convert(const YAML::Node& root) { return convert(root, "", 0); }

 private:
  // Aliases are followed, so a node may be visited many times, or forever if it
  // contains itself; the bounds apply to the expanded text.
  ConfigJson
  convert(const YAML::Node& node, const std::string& name, int depth) {
    if (depth > kMaxDepth) {
      refuse(
          node,
          format(
              "nests values more than {} levels deep; remove the alias that "
              "contains itself, or the brackets that are not needed",
              kMaxDepth));
    }
    if (++num_values_ > kMaxValues) {
      refuse(
          node,
          format(
              "holds more than {} values, including aliases; use a file with "
              "settings only",
              kMaxValues));
    }
    if (node.IsMap()) return convert_map(node, name, depth);
    if (node.IsSequence()) {
      ConfigJson list = ConfigJson::array();
      for (const auto& entry : node)
        list.push_back(convert(entry, "", depth + 1));
      return list;
    }
    if (!node.IsScalar()) return nullptr;
    check_text(node);
    if (!name.empty()) document_.scalars[name] = node.Scalar();
    const bool is_quoted = node.Tag() == "!";
    return is_quoted ? ConfigJson(node.Scalar()) : yaml_value(node.Scalar());
  }

  ConfigJson
  convert_map(const YAML::Node& node, const std::string& name, int depth) {
    ConfigJson map = ConfigJson::object();
    // ordered_json searches all keys at every insertion.
    auto& entries = map.get_ref<ConfigJson::object_t&>();
    std::unordered_map<std::string, std::ptrdiff_t> places;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        refuse(
            entry.first,
            "a key must be a plain word, as in \"key: value\", but is a list, "
            "a map or empty");
      }
      check_text(entry.first);
      const std::string& key = entry.first.Scalar();
      const std::string inner = name_of(name, key, depth);
      if (!inner.empty()) document_.lines[inner] = entry.first.Mark().line + 1;
      ConfigJson value = convert(entry.second, inner, depth + 1);
      const auto [place, is_new] =
          places.try_emplace(key, static_cast<std::ptrdiff_t>(entries.size()));
      if (is_new) {
        entries.emplace_back(key, std::move(value));
      } else {
        (entries.begin() + place->second)->second = std::move(value);
      }
    }
    return map;
  }

  // "key" or "map.key"; empty for anything deeper, or inside a list.
  static std::string
  name_of(const std::string& map, const std::string& key, int depth) {
    const bool has_name = depth == 0 || (depth == 1 && !map.empty());
    if (!has_name || map.size() + key.size() > kMaxNameBytes) return "";
    return depth == 0 ? key : format("{}.{}", map, key);
  }

  // The file may be written again, and is passed to ranks as JSON.
  void check_text(const YAML::Node& scalar) {
    if (!is_utf8(scalar.Scalar()))
      refuse(
          scalar, "contains bytes that are not UTF-8; save the file as UTF-8");
    num_bytes_ += scalar.Scalar().size();
    if (num_bytes_ > document_.text.size() + kMaxAliasBytes) {
      refuse(
          scalar,
          format(
              "holds more than {} bytes that come from aliases; write the "
              "values out",
              kMaxAliasBytes));
    }
  }

  [[noreturn]] void refuse(const YAML::Node& node, std::string_view problem)
      const {
    const int line = node.Mark().line;
    throw ConfigError(format(
        "[config] file {}{} {}",
        document_.path.string(),
        line < 0 ? std::string() : format(", line {},", line + 1),
        problem));
  }

  ConfigDocument& document_;
  int num_values_ = 0;
  std::size_t num_bytes_ = 0;
};

// Reads a file of bounded size: a device never ends.
std::string read_bounded(const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view problem) {
    throw ConfigError(
        format("[config] config file {} {}", path.string(), problem));
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() && file.gcount() == 0) {
    refuse(format(
        "cannot be read: {}; pass another one with --config_file",
        std::strerror(errno == 0 ? EIO : errno)));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxBytes) {
    refuse(format(
        "is longer than {} bytes; use a file with settings only", kMaxBytes));
  }
  return text;
}

}  // namespace

// Uses the types of YAML 1.1, as Accelerate's reader does.
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
  // YAML 1.1 reads 1e8, which has no dot, as a string.
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
  try {
    const YAML::Node root = YAML::Load(document.text);
    if (root.IsNull()) return document;
    if (!root.IsMap()) {
      throw ConfigError(format(
          "[config] file {} must hold keys and values, one "
          "\"key: value\" per line",
          document.path.string()));
    }
    document.values = Converter(document).convert(root);
  } catch (const YAML::Exception& error) {
    throw ConfigError(format(
        "[config] file {} does not parse: {}",
        document.path.string(),
        error.what()));
  }
  return document;
}

ConfigDocument read_config_document(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem) && !problem) {
    throw ConfigError(format(
        "[config] config file {} does not exist; pass the path of one, or "
        "leave out --config_file",
        path));
  }
  return parse_config(read_bounded(path), path);
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
