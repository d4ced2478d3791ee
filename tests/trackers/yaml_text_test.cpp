#include "trackers/media/yaml_text.h"

#include <cstdint>
#include <limits>
#include <regex>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <yaml-cpp/yaml.h>

#include "base/text/text.h"

namespace accelerate {
namespace {
namespace yaml_text_test {

// What YAML 1.1 takes for a string unless it is quoted: whatever PyYAML's
// resolver finds no other type for.
bool is_string_in_yaml_1_1(const std::string& text) {
  static const std::regex other_type(
      "|~|null|Null|NULL|<<|=|"
      "y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|"
      "on|On|ON|off|Off|OFF|"
      "[-+]?0b[01_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])*|"
      "[-+]?[0-9][0-9_:]*\\.[0-9_]*(?:[eE][-+]?[0-9]+)?|"
      "[-+]?\\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|"
      "[-+]?\\.(?:inf|Inf|INF)|\\.(?:nan|NaN|NAN)|"
      "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \\t].*)?");
  // YAML 1.2 has more numbers with an exponent.
  static const std::regex number("[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|0o[0-7]+");
  return !std::regex_match(text, other_type) && !std::regex_match(text, number);
}

// YAML's own types have no quotes, which the reader tells by this tag.
bool is_quoted(const YAML::Node& node) { return node.Tag() == "!"; }

void expect_string(const YAML::Node& node, const std::string& text) {
  RC_ASSERT(node.IsScalar());
  RC_ASSERT(node.Scalar() == text);
  RC_ASSERT(is_quoted(node) || is_string_in_yaml_1_1(text));
}

// The node has the values of `value` with the same types.
void expect_same(const YAML::Node& node, const TrackedValue& value) {
  if (const std::string* const text = value.text()) {
    expect_string(node, *text);
  } else if (const TrackedValues* const map = value.map()) {
    RC_ASSERT(node.IsMap());
    RC_ASSERT(node.size() == map->size());
    auto entry = node.begin();
    for (const NamedValue& each : *map) {
      expect_string(entry->first, each.name);
      expect_same(entry->second, each.value);
      ++entry;
    }
  } else if (
      const auto* const list =
          std::get_if<TrackedValue::List>(&value.content())) {
    RC_ASSERT(node.IsSequence());
    RC_ASSERT(node.size() == list->size());
    for (std::size_t i = 0; i < list->size(); ++i)
      expect_same(node[i], (*list)[i]);
  } else if (const auto* const real = std::get_if<double>(&value.content())) {
    RC_ASSERT(!is_quoted(node));
    RC_ASSERT(node.as<double>() == *real);
    static const std::regex real_in_yaml_1_1(
        "-?[0-9]+\\.[0-9]*(?:e[-+][0-9]+)?|-?\\.inf");
    RC_ASSERT(std::regex_match(node.Scalar(), real_in_yaml_1_1));
  } else if (
      const auto* const whole = std::get_if<std::int64_t>(&value.content())) {
    RC_ASSERT(!is_quoted(node));
    RC_ASSERT(node.Scalar() == std::to_string(*whole));
  } else if (const auto* const flag = std::get_if<bool>(&value.content())) {
    RC_ASSERT(!is_quoted(node));
    RC_ASSERT(node.Scalar() == (*flag ? "true" : "false"));
  } else {
    RC_ASSERT(node.IsNull());
  }
}

// Words that YAML gives another type or a meaning, or any characters, of
// which two out of three have a meaning.
std::string any_text() {
  if (*rc::gen::inRange(0, 2) == 0) {
    return *rc::gen::element<std::string>(
        "",
        "yes",
        "No",
        "y",
        "on",
        "1e3",
        "1.5e+5",
        "012",
        "0o12",
        "0x1F",
        "0b1",
        "1_000",
        "12:30",
        "2024-01-01",
        "2024-01-01 12:00:00",
        "null",
        "Null",
        "~",
        "<<",
        "=",
        ".nan",
        "-.INF",
        "+1",
        "- a",
        "-a",
        "a: b",
        "a #b",
        "---",
        "...",
        "%a",
        "@a",
        "a\nb\x01",
        "\x7f",
        "\xc3\xa9",
        "\xe2\x80\xa8",
        "\xef\xbb\xbf",
        "\xf0\x9f\x98\x80",
        "it's: so",
        "lr",
        "a b",
        "live/params.yaml",
        "train/loss",
        std::string(2000, 'x'));
  }
  std::string text;
  for (const char each : *rc::gen::arbitrary<std::string>()) {
    constexpr std::string_view kLetters = "-:#'\" \n,[]{}&*!|>%@?.0e1y~<=\\";
    const auto byte = static_cast<unsigned char>(each);
    text += byte % 3 == 0 ? static_cast<char>(byte % 128)
                          : kLetters[byte % kLetters.size()];
  }
  return text;
}

TrackedValue any_value(int depth) {
  TrackedValue::List list;
  TrackedValues map;
  switch (*rc::gen::inRange(0, depth > 0 ? 7 : 5)) {
    case 0:
      return {};
    case 1:
      return *rc::gen::arbitrary<bool>();
    case 2:
      return *rc::gen::arbitrary<std::int64_t>();
    case 3:
      return *rc::gen::oneOf(
          rc::gen::arbitrary<double>(),
          rc::gen::element(
              2.0,
              1e-5,
              1e16,
              -0.0,
              5e-324,
              1.7976931348623157e308,
              -std::numeric_limits<double>::infinity()));
    case 4:
      return any_text();
    case 5:
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i)
        list.push_back(any_value(depth - 1));
      return list;
    default:
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i)
        map.push_back({any_text(), any_value(depth - 1)});
      return map;
  }
}

TEST(YamlText, IsReadAsTheValuesThatItWas) {
  EXPECT_TRUE(rc::check([] {
    const TrackedValues values{{any_text(), any_value(3)}};
    expect_same(YAML::Load(detail::yaml_text(values)), values);
  }));
}

TEST(YamlText, IsPlainWherePeopleReadIt) {
  EXPECT_EQ(detail::yaml_text({}), "{}\n");
  EXPECT_EQ(
      detail::yaml_text(
          {{"lr", 1e-5},
           {"path", "live/params.yaml"},
           {"none", TrackedValue()},
           {"list", TrackedValue::List{1, "yes"}}}),
      "lr: 1.0e-05\npath: live/params.yaml\nnone: null\nlist:\n  - 1\n"
      "  - \"yes\"\n");
}

TEST(YamlText, WritesNumbersThatAreNone) {
  EXPECT_EQ(
      detail::yaml_text({{"x", std::numeric_limits<double>::quiet_NaN()}}),
      "x: .nan\n");
}

TEST(YamlText, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(
      YAML::Load(detail::yaml_text({{"x", "a\xff"}}))["x"].Scalar(),
      detail::printable("a\xff", 2));
}

}  // namespace yaml_text_test
}  // namespace
}  // namespace accelerate
