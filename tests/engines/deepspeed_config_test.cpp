#include "engines/deepspeed/deepspeed.h"

#include <string>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace deepspeed_config_test {

using testing::expect_error;

DeepSpeedConfig config_of(const std::string& json) {
  DeepSpeedOptions options;
  options.hf_ds_config = json;
  return {options, resolve({}), {}};
}

TEST(DeepSpeedConfigText, MayHaveDotsInNames) {
  DeepSpeedConfig config = config_of(
      R"({"zero_optimization": {"stage": 1}, "a.b": "auto", "a": {"b": 2},
          "train_batch_size": "auto"})");
  config.fill({{"train_batch_size", 8}, {"a.b", 2}});
  EXPECT_EQ(config.json().at("a.b"), 2);
  EXPECT_EQ(config.json().at("train_batch_size"), 8);
}

TEST(DeepSpeedConfigText, IsRefusedInWords) {
  const auto refuse = [](const std::string& json, const std::string& phrase) {
    expect_error<ConfigError>(
        [&] { static_cast<void>(config_of(json)); }, phrase);
  };
  refuse(R"({"a": x})", "line 1, column 7: syntax error");
  refuse(
      R"({"a": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
      "nested 100001 deep, but only 512 levels are read");
  refuse(
      R"({"zero_optimization": {"stage": 99999999999}})",
      "must be 0, 1, 2 or 3, but is 99999999999");
  refuse(
      R"({"zero_optimization": {"stage": 1}, "gradient_clipping": []})",
      "has the wrong type: type must be number, but is array");
}

TEST(DeepSpeedConfigText, HasStepsThatAnIntCanHold) {
  const auto with_steps = [](const std::string& steps) {
    return config_of(
        R"({"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": )" +
        steps + "}");
  };
  for (const std::string steps :
       {"4294967297",
        "2147483648",
        "18446744073709551615",
        "1844674407370744073709551615",
        "2.5",
        "0",
        "-1",
        "true",
        "[]"}) {
    SCOPED_TRACE(steps);
    expect_error<ConfigError>(
        [&] { static_cast<void>(with_steps(steps)); },
        "but must be a whole number from 1 to 2147483647, or \"auto\"");
  }
  EXPECT_EQ(
      with_steps("2147483647").options().gradient_accumulation_steps,
      2147483647);
}

}  // namespace deepspeed_config_test
}  // namespace accelerate::detail
