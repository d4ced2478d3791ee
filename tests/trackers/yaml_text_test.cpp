#include "trackers/media/yaml_text.h"

#include <cstdint>
#include <limits>
#include <string>
#include <variant>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <yaml-cpp/yaml.h>

namespace accelerate {
namespace {
namespace yaml_text_test {

std::string yaml_of(const TrackedValue& value) {
  return detail::yaml_text({{"x", value}});
}

TEST(YamlText, IsWhatPyYamlWrites) {
  EXPECT_EQ(detail::yaml_text({}), "{}\n");
  EXPECT_EQ(detail::yaml_text({{"b", 1}, {"a", true}}), "a: true\nb: 1\n");
  EXPECT_EQ(yaml_of({}), "x: null\n");
  EXPECT_EQ(yaml_of(1e-5), "x: 1.0e-05\n");
  EXPECT_EQ(yaml_of(2.0), "x: 2.0\n");
  EXPECT_EQ(yaml_of(-std::numeric_limits<double>::infinity()), "x: -.inf\n");
  EXPECT_EQ(yaml_of("a b"), "x: a b\n");
  EXPECT_EQ(yaml_of(""), "x: ''\n");
  EXPECT_EQ(yaml_of("it's: so"), "x: 'it''s: so'\n");
  EXPECT_EQ(yaml_of("yes"), "x: 'yes'\n");
  EXPECT_EQ(yaml_of("1e5"), "x: 1e5\n");
  EXPECT_EQ(yaml_of("1.5e+5"), "x: '1.5e+5'\n");
  EXPECT_EQ(yaml_of("12:30"), "x: '12:30'\n");
  EXPECT_EQ(yaml_of("2024-01-01"), "x: '2024-01-01'\n");
  EXPECT_EQ(yaml_of("- a"), "x: '- a'\n");
  EXPECT_EQ(yaml_of("-a"), "x: -a\n");
  EXPECT_EQ(yaml_of("a\nb\x01"), "x: \"a\\nb\\x01\"\n");
}

TEST(YamlText, NestsListsAndNamedValues) {
  const TrackedValues inner{{"b", TrackedValue::List{}}, {"a", 1}};
  const TrackedValue::List list{1, inner, TrackedValue::List{2, 3}};
  EXPECT_EQ(
      detail::yaml_text(
          {{"list", list}, {"map", inner}, {"none", TrackedValues{}}}),
      "list:\n- 1\n- a: 1\n  b: []\n- - 2\n  - 3\n"
      "map:\n  a: 1\n  b: []\nnone: {}\n");
}

TEST(YamlText, IsReadAsTheStringThatItWas) {
  EXPECT_TRUE(rc::check([](const std::string& bytes) {
    std::string text;
    for (const char each : bytes) {
      // Two times out of three, a character with a meaning in YAML.
      constexpr std::string_view kLetters = "-:#'\" \n,[]{}&*!|>%@?.0e1y~<=\\";
      const auto byte = static_cast<unsigned char>(each);
      text += byte % 3 == 0 ? static_cast<char>(byte % 128)
                            : kLetters[byte % kLetters.size()];
    }
    const YAML::Node node = YAML::Load(detail::yaml_text({{text, text}}));
    RC_ASSERT(node.begin()->first.as<std::string>() == text);
    RC_ASSERT(node.begin()->second.as<std::string>() == text);
    RC_ASSERT(node.begin()->second.Tag() == "!" || !text.empty());
  }));
}

// Words that YAML gives another type, and characters that it refuses or takes
// for line breaks.
std::string any_word() {
  return *rc::gen::element<std::string>(
      "yes",
      "null",
      "~",
      "012",
      "0x1F",
      "12:30",
      "2024-01-01",
      "<<",
      ".nan",
      "- a",
      "a: b",
      "a #b",
      "---",
      "\x7f",
      "a\xc2\x85z",
      "\xc2\x9f",
      "a\xe2\x80\xa8z",
      "\xe2\x80\xa9",
      "\xef\xbb\xbf",
      "\xc3\xa9",
      "\xf0\x9f\x98\x80",
      "it's: \"so\"\n",
      "a b");
}

TrackedValue any_value(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 6 : 4)) {
    case 0:
      return any_word();
    case 1:
      return *rc::gen::arbitrary<std::int64_t>();
    case 2:
      return *rc::gen::arbitrary<bool>();
    case 3:
      return {};
    case 4: {
      TrackedValue::List list(*rc::gen::inRange<std::size_t>(0, 4));
      for (TrackedValue& each : list) each = any_value(depth - 1);
      return list;
    }
    default: {
      TrackedValues map;
      const int size = *rc::gen::inRange(0, 4);
      for (int i = 0; i < size; ++i) {
        map.push_back(
            {std::string(1, static_cast<char>('a' + i)) + any_word(),
             any_value(depth - 1)});
      }
      return map;
    }
  }
}

void expect_same(const YAML::Node& node, const TrackedValue& value) {
  const auto& content = value.content();
  if (const auto* const list = std::get_if<TrackedValue::List>(&content)) {
    RC_ASSERT(node.IsSequence());
    RC_ASSERT(node.size() == list->size());
    for (std::size_t i = 0; i < list->size(); ++i)
      expect_same(node[i], (*list)[i]);
  } else if (const TrackedValues* const map = value.map()) {
    RC_ASSERT(node.IsMap());
    RC_ASSERT(node.size() == map->size());
    for (const NamedValue& each : *map)
      expect_same(node[each.name], each.value);
  } else if (const auto* const text = std::get_if<std::string>(&content)) {
    RC_ASSERT(node.IsScalar());
    RC_ASSERT(node.Scalar() == *text);
  } else if (value.is_none()) {
    RC_ASSERT(node.IsNull());
  } else if (const auto* const flag = std::get_if<bool>(&content)) {
    RC_ASSERT(node.Tag() != "!");
    RC_ASSERT(node.as<bool>() == *flag);
  } else {
    RC_ASSERT(node.Tag() != "!");
    RC_ASSERT(node.Scalar() == value.str());
  }
}

TEST(YamlText, IsReadAsTheValuesThatItWas) {
  for (const auto dialect :
       {detail::YamlDialect::pyyaml, detail::YamlDialect::ruamel}) {
    EXPECT_TRUE(rc::check([dialect] {
      const TrackedValue value = any_value(3);
      const std::string text = detail::yaml_text({{"x", value}}, dialect);
      expect_same(YAML::Load(text)["x"], value);
    }));
  }
}

TEST(YamlText, EscapesWhatYamlRefusesOrTakesForALineBreak) {
  EXPECT_EQ(yaml_of("a\xc2\x85z"), "x: \"a\\x85z\"\n");
  EXPECT_EQ(yaml_of("\xe2\x80\xa8\xe2\x80\xa9"), "x: \"\\L\\P\"\n");
  EXPECT_EQ(yaml_of("\xef\xbb\xbf"), "x: \"\\uFEFF\"\n");
  EXPECT_EQ(yaml_of("\xc2\x9f\x7f"), "x: \"\\x9F\\x7F\"\n");
  EXPECT_EQ(yaml_of("\xc2\xa0\xc3\xa9"), "x: \xc2\xa0\xc3\xa9\n");
}

}  // namespace yaml_text_test
}  // namespace
}  // namespace accelerate
