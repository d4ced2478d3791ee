#include "config/settings.h"

#include <array>

#include <accelerate/error.h>

#include "config/launch_settings.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace settings_test {

using testing::expect_error;

Source source_of(Origin origin, std::string_view key, const std::string& text) {
  Source source{origin, {}};
  source.add(key, text, "test");
  return source;
}

TEST(Settings, TakesTheStrongestSourceWhateverTheOrder) {
  const std::array sources{
      source_of(Origin::file, "mixed_precision", "fp16"),
      source_of(Origin::flag, "mixed_precision", "bf16"),
      source_of(Origin::environment, "mixed_precision", "no")};
  const Settings settings = resolve(sources);
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_EQ(settings.find("mixed_precision")->origin, Origin::flag);
}

TEST(Settings, KnowsThatAValueIsTheDefault) {
  const Settings settings = resolve({});
  EXPECT_EQ(settings.integer("gradient_accumulation_steps"), 1);
  EXPECT_EQ(
      settings.find("gradient_accumulation_steps")->origin,
      Origin::default_value);
  EXPECT_EQ(settings.find("parallelism_config_dp_replicate_size"), nullptr);
}

TEST(Settings, ReportsEveryWrongValueOfEverySource) {
  const std::array sources{
      source_of(Origin::flag, "num_processes", "many"),
      source_of(Origin::file, "num_processes", "-1"),
      source_of(Origin::environment, "use_cpu", "perhaps")};
  expect_error<ConfigError>([&] { resolve(sources); }, "\"many\"");
  expect_error<ConfigError>([&] { resolve(sources); }, "\"-1\"");
  expect_error<ConfigError>([&] { resolve(sources); }, "\"perhaps\"");
}

TEST(Settings, ComeBackFromTheHandoverWithTheirOrigins) {
  const std::array sources{
      source_of(Origin::flag, "mixed_precision", "bf16"),
      source_of(Origin::file, "timeout_seconds", "12.5"),
      source_of(Origin::file, "use_cpu", "yes")};
  Environment environment;
  environment.set(
      std::string(kHandoverVariable), to_handover(resolve(sources)));
  environment.set("ACCELERATE_MIXED_PRECISION", "fp16");
  const Settings settings = launch_settings(environment);
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_EQ(settings.find("mixed_precision")->where, "test");
  EXPECT_EQ(settings.number("timeout_seconds"), 12.5);
  EXPECT_TRUE(settings.boolean("use_cpu"));
}

TEST(Settings, RefusesAHandoverOfAnotherVersion) {
  Environment environment;
  environment.set(std::string(kHandoverVariable), R"({"warp_drive": 9})");
  expect_error<ConfigError>(
      [&] { launch_settings(environment); }, "\"warp_drive\"");
  environment.set(std::string(kHandoverVariable), "[1, 2");
  expect_error<ConfigError>(
      [&] { launch_settings(environment); }, "is not a JSON object");
}

}  // namespace settings_test
}  // namespace accelerate::detail
