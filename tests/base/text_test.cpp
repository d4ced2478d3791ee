#include "base/text.h"

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace text_test {

TEST(TextTest, FormatsValuesIntoAMessage) {
  EXPECT_EQ(format("rank {} of {}", 3, 4L), "rank 3 of 4");
  EXPECT_EQ(format("nothing to put in"), "nothing to put in");
  EXPECT_EQ(format(""), "");
  EXPECT_EQ(format("{}{}", "no ", std::string("space")), "no space");
  EXPECT_EQ(format("{{\"a\": {}}}", 1), "{\"a\": 1}");
  EXPECT_EQ(format("{{}} {{{}}}", "x"), "{} {x}");
  // Braces inside a value are copied unchanged.
  EXPECT_EQ(format("{} and {}", "{}", "}"), "{} and }");
  EXPECT_EQ(format("a\0b{}", 'c'), std::string("a\0bc", 4));
}

TEST(TextTest, FormatsValuesAsTheyAreStreamed) {
  EXPECT_EQ(format("{}", 1.0 / 3), "0.333333");
  EXPECT_EQ(format("{}", 1e20F), "1e+20");
  EXPECT_EQ(format("{}{}", true, false), "10");
  EXPECT_EQ(format("{}", 'x'), "x");
  EXPECT_EQ(format("{}", std::string_view("view")), "view");
}

TEST(TextTest, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_int("-12"), -12);
  EXPECT_EQ(parse_int("+7"), 7);
  EXPECT_EQ(parse_int("12x"), std::nullopt);
  EXPECT_EQ(parse_int(""), std::nullopt);
  EXPECT_EQ(parse_int("99999999999999999999"), std::nullopt);
  EXPECT_EQ(parse_double("1e3"), 1000.0);
  EXPECT_EQ(parse_double("1.5 "), std::nullopt);
}

TEST(TextTest, ParsesAcceleratesBooleans) {
  for (const char* word : {"y", "Yes", "t", "TRUE", "on", "1"}) {
    EXPECT_EQ(parse_bool(word), true) << word;
  }
  for (const char* word : {"n", "No", "f", "False", "OFF", "0"}) {
    EXPECT_EQ(parse_bool(word), false) << word;
  }
  EXPECT_EQ(parse_bool("maybe"), std::nullopt);
  EXPECT_EQ(parse_bool(""), std::nullopt);
}

TEST(TextTest, SplitsAndJoinsBack) {
  const std::vector<std::string> parts = split("a,,b,", ',');
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(join(parts, ","), "a,,b,");
  EXPECT_EQ(trim(" \t x y\n"), "x y");
  EXPECT_EQ(trim("  "), "");
}

TEST(TextTest, FindsTheNearestName) {
  const std::vector<std::string> known{
      "num_processes", "num_machines", "use_cpu"};
  EXPECT_EQ(nearest("num_proceses", known), "num_processes");
  EXPECT_EQ(nearest("num_machine", known), "num_machines");
  EXPECT_EQ(nearest("elephant", known), std::nullopt);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
}

}  // namespace text_test
}  // namespace accelerate::detail
