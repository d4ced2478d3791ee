#include "engines/deepspeed/deepspeed_section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace deepspeed_section_test {

using testing::expect_error;

DeepSpeedSectionReader section(const std::string& params) {
  return {
      R"({"optimizer": {"type": "Adam", "params": )" + params + "}}",
      "optimizer",
      {{"lr", 0.25}}};
}

TEST(DeepSpeedSection, ReadsItsParameters) {
  auto found = section(
      R"({"lr": "auto", "betas": [0.5, 0.75], "amsgrad": true, "mode": "log"})");
  EXPECT_EQ(found.type(), "Adam");
  EXPECT_EQ(found.number("lr", 1), 0.25);
  EXPECT_EQ(found.number("eps", 0.125), 0.125);
  EXPECT_EQ(found.pair("betas", {0, 0}), std::tuple(0.5, 0.75));
  EXPECT_TRUE(found.truth("amsgrad", false));
  EXPECT_EQ(found.text("mode", ""), "log");
  found.require_all_known();
}

TEST(DeepSpeedSection, RefusesUnknownParametersAndTypes) {
  expect_error<ConfigError>(
      [] { section(R"({"lr": 1, "turbo": true})").require_all_known(); },
      "optimizer Adam of the DeepSpeed configuration has parameters that are "
      "not supported here: lr, turbo");
  expect_error<ConfigError>(
      [] { section(R"({"eps": "auto"})").number("eps", 0); },
      "optimizer.params.eps of the DeepSpeed configuration is \"auto\", not a "
      "number");
  expect_error<ConfigError>(
      [] { DeepSpeedSectionReader("{}", "scheduler", {}); },
      "has no section \"scheduler\" with a type");
}

}  // namespace deepspeed_section_test
}  // namespace accelerate::detail
