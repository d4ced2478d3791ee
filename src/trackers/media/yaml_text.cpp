#include "trackers/media/yaml_text.h"

#include <cmath>
#include <cstddef>
#include <regex>
#include <variant>

#include <yaml-cpp/yaml.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Any other text is quoted, since it may be a number, a date or a mark of YAML.
bool is_plain_word(const std::string& text) {
  static const std::regex word("[A-Za-z_][A-Za-z0-9_./-]{0,99}");
  static const std::regex other_type(
      "null|true|false|yes|no|on|off|y|n", std::regex::icase);
  return text.size() <= 100 && std::regex_match(text, word) &&
      !std::regex_match(text, other_type);
}

std::string number_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = TrackedValue(value).str();
  // YAML 1.1 has no numbers with an exponent but no point.
  const std::size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos)
    text.insert(exponent, ".0");
  return text;
}

struct Writer {
  YAML::Emitter& yaml;

  void operator()(std::monostate) const { yaml << YAML::Null; }
  void operator()(bool flag) const { yaml << flag; }
  void operator()(std::int64_t whole) const { yaml << whole; }
  void operator()(double real) const { yaml << number_text(real); }

  void operator()(const std::string& text) const {
    if (!is_plain_word(text)) yaml << YAML::DoubleQuoted;
    yaml << (is_utf8(text) ? text : printable(text, text.size()));
  }

  void operator()(const TrackedValue::List& list) const {
    yaml << YAML::BeginSeq;
    for (const TrackedValue& each : list) std::visit(*this, each.content());
    yaml << YAML::EndSeq;
  }

  void operator()(const TrackedValues& values) const {
    yaml << YAML::BeginMap;
    for (const NamedValue& each : values) {
      // Readers accept a key of more than 1024 characters only behind a "?".
      yaml << (each.name.size() > 100 ? YAML::LongKey : YAML::Auto)
           << YAML::Key;
      (*this)(each.name);
      yaml << YAML::Value;
      std::visit(*this, each.value.content());
    }
    yaml << YAML::EndMap;
  }
};

}  // namespace

std::string yaml_text(const TrackedValues& values) {
  YAML::Emitter yaml;
  // Readers refuse some characters that are not escaped, such as U+007F.
  yaml.SetOutputCharset(YAML::EscapeNonAscii);
  yaml.SetNullFormat(YAML::LowerNull);
  Writer{yaml}(values);
  return std::string(yaml.c_str()) + "\n";
}

}  // namespace accelerate::detail
