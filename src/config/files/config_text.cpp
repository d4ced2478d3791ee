#include "config/files/config_document.h"

#include <utility>
#include <vector>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

ConfigJson sorted(const ConfigJson& value) {
  if (!value.is_object()) return value;
  std::map<std::string, ConfigJson> entries;
  for (const auto& [key, inner] : value.items()) entries[key] = sorted(inner);
  ConfigJson out = ConfigJson::object();
  // The keys are distinct; ordered_json would search them at every insertion.
  auto& ordered = out.get_ref<ConfigJson::object_t&>();
  for (auto& [key, inner] : entries)
    ordered.emplace_back(key, std::move(inner));
  return out;
}

std::string yaml_scalar(const ConfigJson& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (!value.is_string()) return python_text(value);
  const auto text = value.get<std::string>();
  const bool is_plain = !text.empty() && yaml_value(text).is_string() &&
      text.find_first_of(":#{}[],&*!|>'\"%@`\n\t\\") == std::string::npos &&
      text.front() != ' ' && text.back() != ' ' && text.front() != '-' &&
      text.front() != '?';
  if (is_plain) return text;
  if (text.find_first_of("\n\t\\") != std::string::npos) return value.dump();
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c;
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

void append_yaml(
    std::string& out,
    const std::string& key,
    const ConfigJson& value,
    const std::string& indent) {
  const std::string head = format("{}{}:", indent, yaml_scalar(key));
  if (value.is_object() && !value.empty()) {
    out += head + "\n";
    for (const auto& [inner, entry] : value.items()) {
      append_yaml(out, inner, entry, indent + "  ");
    }
  } else if (value.is_array() && !value.empty()) {
    out += head + "\n";
    for (const ConfigJson& entry : value) {
      out += format("{}- {}\n", indent, yaml_scalar(entry));
    }
  } else if (value.is_object() || value.is_array()) {
    out += head + (value.is_object() ? " {}\n" : " []\n");
  } else {
    out += format("{} {}\n", head, yaml_scalar(value));
  }
}

// The lines of a top-level key, including the comments above it.
struct Block {
  std::string key;  // empty before the first key
  std::string lines;
};

std::vector<Block> blocks_of(const ConfigDocument& document) {
  std::map<int, std::string> starts;
  for (const auto& [key, line] : document.lines) {
    if (document.values.contains(key)) starts[line] = key;
  }
  std::vector<std::string> lines = split(document.text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  std::vector<Block> blocks{{"", ""}};
  std::string comments;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto start = starts.find(static_cast<int>(i) + 1);
    if (start != starts.end()) {
      blocks.push_back({start->second, std::exchange(comments, "")});
    } else if (const auto bare = trim(lines[i]);
               bare.empty() || bare.front() == '#') {
      comments += lines[i] + "\n";
      continue;
    }
    blocks.back().lines += std::exchange(comments, "") + lines[i] + "\n";
  }
  blocks.back().lines += comments;
  return blocks;
}

}  // namespace

std::string write_config(const ConfigJson& values, bool as_json) {
  const ConfigJson in_order = sorted(values);
  if (as_json) return in_order.dump(2) + "\n";
  std::string out;
  for (const auto& [key, value] : in_order.items()) {
    append_yaml(out, key, value, "");
  }
  return out.empty() ? "{}\n" : out;
}

std::string updated_text(
    const ConfigDocument& document,
    const ConfigJson& values) {
  if (document.is_json || document.values.empty()) {
    return write_config(values, document.is_json);
  }
  std::string out;
  for (const Block& block : blocks_of(document)) {
    if (block.key.empty()) {
      out += block.lines;
    } else if (!values.contains(block.key)) {
      continue;
    } else if (values[block.key] == document.values[block.key]) {
      out += block.lines;
    } else {
      // Keeps the comments above the key.
      for (const std::string& line : split(block.lines, '\n')) {
        const auto bare = trim(line);
        if (bare.empty() || bare.front() != '#') break;
        out += line + "\n";
      }
      append_yaml(out, block.key, values[block.key], "");
    }
  }
  const ConfigJson in_order = sorted(values);
  for (const auto& [key, value] : in_order.items()) {
    if (!document.values.contains(key)) append_yaml(out, key, value, "");
  }
  return out;
}

}  // namespace accelerate::detail
