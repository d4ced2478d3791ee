#include "base/text/text.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

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
  const std::vector<std::string> far{"kitten", ""};
  EXPECT_EQ(nearest("sitting", far), std::nullopt);
  EXPECT_EQ(nearest("sittins", far), std::nullopt);
  EXPECT_EQ(nearest("kittin", far), "kitten");
}

TEST(PrintableTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("model.w_1 [\xc3\xa9]"), "model.w_1 [\xc3\xa9]");
  EXPECT_EQ(printable("\x1b]0;t\a\x7f"), "\\x1b]0;t\\x07\\x7f");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  // A one-byte Latin-1 control character, a direction mark, a line separator.
  EXPECT_EQ(
      printable("\xc2\x9b"
                "31m"),
      "\\u009b31m");
  EXPECT_EQ(
      printable("\xe2\x80\xae"
                "gpj.exe\xe2\x80\xa8"),
      "\\u202egpj.exe\\u2028");
  // Invalid UTF-8: a lone byte, cut short, overlong, a surrogate, beyond
  // U+10FFFF.
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xf0\x9f\xa4\x97"), "\xf0\x9f\xa4\x97");
  EXPECT_EQ(printable_lines("a\n\tb\x1b[2J\r"), "a\n\tb\\x1b[2J\\r");
}

TEST(PrintableTest, KnowsUtf8) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("caf\xc3\xa9 \xf0\x9f\xa4\x97\n"));
  EXPECT_FALSE(is_utf8("caf\xe9"));
  EXPECT_FALSE(is_utf8("\xf0\x9f\xa4"));
}

TEST(PrintableTest, ShortensLongNamesInTheirMiddle) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789a", 10), "0123...89a");
  EXPECT_EQ(printable(std::string(1'000'000, 'x')).size(), kMostShownBytes);
  // Does not split characters.
  EXPECT_EQ(
      printable("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 7), "\xc3\xa9...\xc3\xa9");
}

TEST(PrintableTest, IsIdempotentAndHarmlessForAnyBytes) {
  EXPECT_TRUE(rc::check([](const std::string& text) {
    const auto most = *rc::gen::inRange<std::size_t>(8, 60);
    const std::string shown = printable(text, most);
    RC_ASSERT(shown.size() <= most);
    RC_ASSERT(printable(shown, most) == shown);
    RC_ASSERT(std::none_of(shown.begin(), shown.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    }));
    RC_ASSERT(printable_lines(printable_lines(text)) == printable_lines(text));
  }));
}

// Number of single-character edits that turn one string into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> table(
      a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      table[i][j] = i == 0 || j == 0
          ? i + j
          : std::min(
                {table[i - 1][j] + 1,
                 table[i][j - 1] + 1,
                 table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
    }
  }
  return table[a.size()][b.size()];
}

TEST(TextTest, FindsTheFirstOfTheNearestNames) {
  EXPECT_TRUE(rc::check([] {
    const auto word =
        rc::gen::container<std::string>(rc::gen::inRange('a', 'd'));
    const std::string name = *word;
    const auto known = *rc::gen::container<std::vector<std::string>>(word);
    std::optional<std::string> best;
    std::size_t fewest = std::max<std::size_t>(2, name.size() / 4) + 1;
    for (const std::string& each : known) {
      if (edit_distance(name, each) >= fewest) continue;
      fewest = edit_distance(name, each);
      best = each;
    }
    RC_ASSERT(nearest(name, known) == best);
  }));
}

TEST(TextTest, FindsNoNearestNameForMegabytes) {
  const std::string name(4'000'000, 'x');
  const std::vector<std::string> known{name + "y", "short"};
  EXPECT_EQ(nearest(name, known), std::nullopt);
  EXPECT_EQ(nearest("shorz", known), "short");
}

}  // namespace text_test
}  // namespace accelerate::detail
