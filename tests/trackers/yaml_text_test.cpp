#include "trackers/media/yaml_text.h"

#include <limits>
#include <string>

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

}  // namespace yaml_text_test
}  // namespace
}  // namespace accelerate
