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

// True for text that YAML 1.1 reads as a boolean, null, number, date or merge
// key.
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

// A character that YAML rejects unescaped, or takes for a line break, and its
// escape between quotes.
struct Escape {
  std::size_t num_bytes = 0;
  std::string text = {};
};

Escape escape_of(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  const bool is_c1 = text.size() > 1 && byte == 0xc2 &&
      static_cast<unsigned char>(text[1]) < 0xa0;
  if (text[0] == '\n') return {1, "\\n"};
  if (text[0] == '\t') return {1, "\\t"};
  if (text.starts_with("\xe2\x80\xa8")) return {3, "\\L"};
  if (text.starts_with("\xe2\x80\xa9")) return {3, "\\P"};
  if (text.starts_with("\xef\xbb\xbf")) return {3, "\\uFEFF"};
  if (byte >= 0x20 && byte != 0x7f && !is_c1) return {};
  std::array<char, 8> escape{};
  std::snprintf(
      escape.data(),
      escape.size(),
      "\\x%02X",
      is_c1 ? static_cast<unsigned char>(text[1]) : byte);
  return {is_c1 ? std::size_t{2} : std::size_t{1}, escape.data()};
}

bool needs_escapes(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (escape_of(text.substr(i)).num_bytes > 0) return true;
  }
  return false;
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
  while (!text.empty()) {
    const Escape escape = escape_of(text);
    if (escape.num_bytes > 0) {
      result += escape.text;
      text.remove_prefix(escape.num_bytes);
      continue;
    }
    if (text[0] == '"' || text[0] == '\\') result += '\\';
    result += text[0];
    text.remove_prefix(1);
  }
  return result + "\"";
}

std::string yaml_string(const std::string& text) {
  // Invalid UTF-8 is not YAML.
  if (!is_utf8(text)) return quoted_with_escapes(printable(text, text.size()));
  if (needs_escapes(text)) return quoted_with_escapes(text);
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
      std::ranges::stable_sort(values, {}, &NamedValue::name);
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
