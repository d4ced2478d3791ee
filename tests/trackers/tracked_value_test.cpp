#include <accelerate/tracker.h>

#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace {
namespace tracked_value_test {

std::string str(const TrackedValue& value) { return value.str(); }

TEST(TrackedValue, KeepsTheOrderOfNames) {
  const TrackedValues values{{"b", 2}, {"a", 1.5}};
  EXPECT_EQ(values[0].name, "b");
  EXPECT_EQ(values[1].value, TrackedValue(1.5));
}

TEST(TrackedValue, IsWrittenAsPythonWritesIt) {
  EXPECT_EQ(str({}), "None");
  EXPECT_EQ(str(true), "True");
  EXPECT_EQ(str(false), "False");
  EXPECT_EQ(str(1099511627776), "1099511627776");
  EXPECT_EQ(str(-7), "-7");
  EXPECT_EQ(str("some text"), "some text");
}

TEST(TrackedValue, WritesRealNumbersAsPythonDoes) {
  EXPECT_EQ(str(8.0), "8.0");
  EXPECT_EQ(str(-0.0), "-0.0");
  EXPECT_EQ(str(1e-5), "1e-05");
  EXPECT_EQ(str(1e-4), "0.0001");
  EXPECT_EQ(str(0.1), "0.1");
  EXPECT_EQ(str(1e15), "1000000000000000.0");
  EXPECT_EQ(str(1e16), "1e+16");
  EXPECT_EQ(str(1.5e300), "1.5e+300");
  EXPECT_EQ(str(-1.9286), "-1.9286");
  EXPECT_EQ(str(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(str(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(str(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(TrackedValue, WritesListsAndNamedValuesAsPythonDoes) {
  EXPECT_EQ(str(TrackedValue::List{1, 2.0, "a"}), "[1, 2.0, 'a']");
  EXPECT_EQ(str(TrackedValue::List{}), "[]");
  EXPECT_EQ(
      str({{"a", 1}, {"b", TrackedValue::List{true}}}),
      "{'a': 1, 'b': [True]}");
  EXPECT_EQ(
      str(TrackedValue::List{"it's", "a\n\x01\\"}), R"(["it's", 'a\n\x01\\'])");
  EXPECT_EQ(str(TrackedValue::List{"'\""}), R"(['\'"'])");
}

TEST(TrackedValue, RefusesNumbersBeyond64Bits) {
  EXPECT_EQ(TrackedValue(std::uint64_t{INT64_MAX}), TrackedValue(INT64_MAX));
  testing::expect_error<ConfigError>(
      [] { TrackedValue(std::uint64_t{INT64_MAX} + 1); },
      "but one is 9223372036854775808");
}

TEST(TrackedValue, CountsTruthValuesAsNumbersButNotTexts) {
  EXPECT_EQ(TrackedValue(true).number(), 1.0);
  EXPECT_EQ(TrackedValue(3U).number(), 3.0);
  EXPECT_EQ(TrackedValue(2.5F).number(), 2.5);
  EXPECT_EQ(TrackedValue("3").number(), std::nullopt);
  EXPECT_EQ(*TrackedValue("3").text(), "3");
}

TEST(TrackedValue, ReadsBackTheRealNumberThatItWrites) {
  EXPECT_TRUE(rc::check([](double value) {
    RC_ASSERT(std::stod(TrackedValue(value).str()) == value);
  }));
}

}  // namespace tracked_value_test
}  // namespace
}  // namespace accelerate
