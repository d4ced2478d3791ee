#include "base/text/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::detail {
namespace json_text_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(JsonText, SaysWhereTextIsNotJson) {
  EXPECT_EQ(parse_json("{\"a\": [1, 2]}").value["a"][1], 2);
  EXPECT_EQ(parse_json("{}").complaint, "");
  const std::string complaint = parse_json("{\n  \"a\": x}").complaint;
  EXPECT_THAT(complaint, StartsWith("line 2, column 8: syntax error"));
  EXPECT_THAT(complaint, Not(HasSubstr("json.exception")));
  EXPECT_THAT(
      parse_json("1e999").complaint, StartsWith("number overflow parsing"));
  EXPECT_NE(parse_json("").complaint, "");
}

TEST(JsonText, ShowsNoEscapeSequencesAndNoMegabytes) {
  const std::string escapes = parse_json("[\"\x1b[2J\xff").complaint;
  EXPECT_THAT(escapes, Not(HasSubstr("\x1b")));
  EXPECT_THAT(escapes, Not(HasSubstr("\xff")));
  EXPECT_LE(
      parse_json("[\"" + std::string(1'000'000, 'x')).complaint.size(), 400U);
}

TEST(JsonText, RefusesDeepNesting) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(parse_json(nested(kMostJsonDepth)).complaint, "");
  EXPECT_EQ(
      parse_json(nested(kMostJsonDepth + 1)).complaint,
      "lists and objects are nested 513 deep, but only 512 levels are read");
  EXPECT_NE(parse_json(nested(1'000'000)).complaint, "");
  // Brackets in strings do not count.
  EXPECT_EQ(
      parse_json("[\"" + std::string(1000, '[') + "\\\"[\"]").complaint, "");
}

}  // namespace json_text_test
}  // namespace accelerate::detail
