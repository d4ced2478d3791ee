#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

using ConfigJson = nlohmann::ordered_json;

/// A config file as written: keys in file order, values with the types that
/// Accelerate's reader gives them (`yes` is a boolean, `'yes'` a string).
struct ConfigDocument {
  std::filesystem::path path;
  std::string text;
  bool is_json = false;
  ConfigJson values = ConfigJson::object();
  /// Scalars as written, by "key" or "map.key", since YAML reads some strings,
  /// such as NO, as booleans.
  std::map<std::string, std::string, std::less<>> scalars;
  /// Line numbers, from 1, by the same names.
  std::map<std::string, int, std::less<>> lines;
};

/// Throws ConfigError, with the line, for text that does not parse or is not a
/// map.
ConfigDocument parse_config(std::string text, std::filesystem::path path);
ConfigDocument read_config_document(const std::filesystem::path& path);

/// "file run.yaml, line 3", or without the line if there is none.
std::string place_of(const ConfigDocument& document, const std::string& name);

/// Complaints about keys that a file should not have. Names the first few, each
/// with the nearest known key.
class UnknownKeys {
 public:
  UnknownKeys(
      const ConfigDocument& document,
      std::vector<std::string>& complaints)
      : document_(document), complaints_(complaints) {}

  /// `name` is "key" or "map.key".
  void add(
      const std::string& name,
      const std::string& key,
      const std::vector<std::string>& known);
  /// Adds how many more there were.
  void finish();

 private:
  static constexpr int kMaxNamed = 20;

  const ConfigDocument& document_;
  std::vector<std::string>& complaints_;
  int num_unknown_ = 0;
};

/// Every Accelerate key with the value in force: defaults filled in, keys of
/// old versions replaced or left out, sections without a value empty. Throws one
/// ConfigError for a missing or unknown `distributed_type`, every section that
/// is not a map and every unknown key, with the nearest known key.
ConfigJson values_in_force(const ConfigDocument& document);

/// The keys that earlier versions of Accelerate wrote and the current one no
/// longer has, each with its file; values_in_force() leaves them out.
std::vector<std::string> retired_keys(const ConfigDocument& document);

/// The values to write to a file, without nulls and empty maps.
ConfigJson values_to_write(const ConfigJson& in_force);

/// All values as JSON or YAML, keys sorted.
std::string write_config(const ConfigJson& values, bool as_json);

/// The document's text updated to these values: keeps the lines and comments of
/// unchanged keys, drops removed keys, and appends new ones. JSON is rewritten
/// entirely.
std::string updated_text(
    const ConfigDocument& document,
    const ConfigJson& values);

/// Whether a key may appear at the top level of this machine's file.
bool is_config_key(std::string_view key);

/// The JSON schema of config files, for editors.
std::string config_schema();

/// The value of an unquoted scalar in YAML 1.1, which Accelerate follows.
ConfigJson yaml_value(const std::string& scalar);

/// A value as Python writes it: True, 1.0, a string unchanged.
std::string python_text(const ConfigJson& value);

}  // namespace accelerate::detail
