#include "config/options/option_table.h"

#include <set>

#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace option_table_test {

using testing::expect_error;

TEST(OptionTable, HasEveryNameOnceAndDefaultsThatParse) {
  std::set<std::string_view> keys, flags, variables;
  for (const OptionSpec& spec : option_table()) {
    EXPECT_TRUE(keys.insert(spec.key).second) << spec.key;
    EXPECT_TRUE(spec.flag.empty() || flags.insert(spec.flag).second)
        << spec.flag;
    EXPECT_TRUE(spec.variable.empty() || variables.insert(spec.variable).second)
        << spec.variable;
    if (!spec.default_value.empty()) {
      EXPECT_NO_THROW(parse_option(spec, spec.default_value));
    }
    EXPECT_FALSE(spec.help.empty());
  }
}

TEST(OptionTable, KnowsDefaultsHereAndOfPythonPrograms) {
  const OptionSpec& spec = *find_option("fsdp_min_num_params");
  EXPECT_EQ(spec.default_value, "0");
  EXPECT_EQ(spec.default_for_python(), "100000000");
  EXPECT_TRUE(is_default(spec, std::int64_t{0}));
  EXPECT_TRUE(is_default(spec, std::int64_t{100'000'000}));
  EXPECT_FALSE(is_default(spec, std::int64_t{7}));
  EXPECT_EQ(find_option("zero_stage")->default_for_python(), "");
  EXPECT_EQ(find_option("role")->default_for_python(), "default");
  for (const OptionSpec& each : option_table()) {
    if (!each.default_for_python().empty()) {
      EXPECT_NO_THROW(parse_option(each, each.default_for_python()));
    }
  }
}

TEST(OptionTable, FindsTheOptionOfAVariable) {
  EXPECT_EQ(find_option_of_variable("FSDP_VERSION")->key, "fsdp_version");
  EXPECT_EQ(find_option_of_variable("RANK"), nullptr);
  EXPECT_EQ(find_option_of_variable(""), nullptr);
}

TEST(OptionTable, RefusesNumbersThatAnIntCannotHold) {
  const OptionSpec& steps = *find_option("gradient_accumulation_steps");
  EXPECT_EQ(parse_option(steps, "2147483647"), OptionValue(2147483647L));
  expect_error<ConfigError>(
      [&] { parse_option(steps, "4294967297"); },
      "gradient_accumulation_steps is \"4294967297\", but must be a whole "
      "number of at least 1, at most 2147483647");
  // Models can have more parameters than an int holds.
  EXPECT_EQ(
      parse_option(*find_option("fsdp_min_num_params"), "4294967297"),
      OptionValue(4294967297L));
}

TEST(OptionTable, ReadsBackWhatItWrites) {
  EXPECT_TRUE(rc::check([] {
    const auto value = *rc::gen::inRange<std::int64_t>(1, 1'000'000);
    const OptionSpec& spec = *find_option("num_processes");
    RC_ASSERT(
        parse_option(spec, format_option(OptionValue(value))) ==
        OptionValue(value));
  }));
}

TEST(OptionTable, ListsTheAllowedValues) {
  expect_error<ConfigError>(
      [] { parse_option(*find_option("mixed_precision"), "fp12"); },
      "one of no, fp16, bf16, fp8");
  expect_error<ConfigError>(
      [] { parse_option(*find_option("main_process_port"), "70000"); },
      "at least 0 and at most 65535");
  expect_error<ConfigError>(
      [] { parse_option(*find_option("num_processes"), "2.5"); }, "whole");
}

TEST(OptionTable, RefusesNumbersFollowedByText) {
  EXPECT_TRUE(rc::check([] {
    const auto digits = *rc::gen::inRange(1, 1000);
    const auto tail =
        *rc::gen::element<std::string>("x", " 1", ".", "e", "-", "\t2");
    EXPECT_THROW(
        parse_option(
            *find_option("num_processes"), std::to_string(digits) + tail),
        ConfigError);
  }));
}

}  // namespace option_table_test
}  // namespace accelerate::detail
