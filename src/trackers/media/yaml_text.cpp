#include "trackers/media/yaml_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <regex>
#include <string_view>
#include <variant>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// What YAML 1.1 reads as a boolean, null, number, date or merge key.
bool reads_as_other_type(const std::string& text) {
  static const std::regex pattern(
      "~|null|Null|NULL|<<|=|"
      "(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|"
      "on|On|ON|off|Off|OFF)|"
      "[-+]?0b[01_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])*|"
      "[-+]?[0-9][0-9_:]*\\.[0-9_]*(?:[eE][-+]?[0-9]+)?|"
      "[-+]?\\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|"
      "[-+]?\\.(?:inf|Inf|INF)|\\.(?:nan|NaN|NAN)|"
      "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \\t].*)?");
  // The longest of these is a date with a time.
  return text.empty() || (text.size() < 64 && std::regex_match(text, pattern));
}

bool has_control_characters(std::string_view text) {
  return !is_utf8(text) ||
      std::any_of(text.begin(), text.end(), [](const char letter) {
        const auto byte = static_cast<unsigned char>(letter);
        return byte < 0x20 || byte == 0x7f;
      });
}

bool needs_quotes(const std::string& text) {
  if (reads_as_other_type(text)) return true;
  constexpr std::string_view kIndicators = ",[]{}#&*!|>'\"%@`";
  const char first = text.front();
  if (kIndicators.find(first) != std::string::npos) return true;
  if ((first == '-' || first == '?' || first == ':') &&
      (text.size() == 1 || text[1] == ' ')) {
    return true;
  }
  return first == ' ' || text.back() == ' ' || text.back() == ':' ||
      text.starts_with("---") || text.starts_with("...") ||
      text.find(": ") != std::string::npos ||
      text.find(" #") != std::string::npos;
}

std::string quoted_with_escapes(std::string_view text) {
  std::string result = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (letter == '\n') {
      result += "\\n";
    } else if (letter == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02X", byte);
      result += escape.data();
    } else {
      result += letter;
    }
  }
  return result + "\"";
}

std::string yaml_string(const std::string& text) {
  // Invalid UTF-8 is not YAML.
  if (!is_utf8(text)) return quoted_with_escapes(printable(text, text.size()));
  if (has_control_characters(text)) return quoted_with_escapes(text);
  if (!needs_quotes(text)) return text;
  std::string result = "'";
  for (const char letter : text) {
    result += letter;
    if (letter == '\'') result += letter;
  }
  return result + "'";
}

std::string yaml_number(double value, YamlDialect dialect) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = TrackedValue(value).str();
  // YAML 1.1 has no numbers with an exponent but no point.
  const std::size_t exponent = text.find('e');
  if (dialect == YamlDialect::pyyaml && exponent != std::string::npos &&
      text.find('.') == std::string::npos) {
    text.insert(exponent, ".0");
  }
  return text;
}

class YamlText {
 public:
  explicit YamlText(YamlDialect dialect) : dialect_(dialect) {}

  void write_map(TrackedValues values, std::size_t indent) {
    if (dialect_ == YamlDialect::pyyaml) {
      std::stable_sort(
          values.begin(), values.end(), [](const auto& one, const auto& other) {
            return one.name < other.name;
          });
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text_.append(indent, ' ');
      text_ += yaml_string(values[i].name) + ":";
      write_below_name(values[i].value, indent);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  void write_below_name(const TrackedValue& value, std::size_t indent) {
    const auto* const list = std::get_if<TrackedValue::List>(&value.content());
    if (const TrackedValues* map = value.map(); map && !map->empty()) {
      text_ += "\n" + std::string(indent + 2, ' ');
      write_map(*map, indent + 2);
    } else if (list && !list->empty()) {
      text_ += "\n" + std::string(indent, ' ');
      write_list(*list, indent);
    } else if (value.is_none() && dialect_ == YamlDialect::ruamel) {
      text_ += "\n";
    } else {
      text_ += " " + scalar(value) + "\n";
    }
  }

  void write_list(const TrackedValue::List& list, std::size_t indent) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) text_.append(indent, ' ');
      text_ += "- ";
      const auto* const inner =
          std::get_if<TrackedValue::List>(&list[i].content());
      if (const TrackedValues* map = list[i].map(); map && !map->empty()) {
        write_map(*map, indent + 2);
      } else if (inner && !inner->empty()) {
        write_list(*inner, indent + 2);
      } else {
        text_ += scalar(list[i]) + "\n";
      }
    }
  }

  [[nodiscard]] std::string scalar(const TrackedValue& value) const {
    struct Scalar {
      YamlDialect dialect;
      std::string operator()(std::monostate) const { return "null"; }
      std::string operator()(bool flag) const {
        return flag ? "true" : "false";
      }
      std::string operator()(std::int64_t whole) const {
        return std::to_string(whole);
      }
      std::string operator()(double real) const {
        return yaml_number(real, dialect);
      }
      std::string operator()(const std::string& text) const {
        return yaml_string(text);
      }
      std::string operator()(const TrackedValue::List&) const { return "[]"; }
      std::string operator()(const TrackedValues&) const { return "{}"; }
    };
    return std::visit(Scalar{dialect_}, value.content());
  }

  YamlDialect dialect_;
  std::string text_;
};

}  // namespace

std::string yaml_text(const TrackedValues& values, YamlDialect dialect) {
  if (values.empty()) return "{}\n";
  YamlText text(dialect);
  text.write_map(values, 0);
  return text.take();
}

}  // namespace accelerate::detail
