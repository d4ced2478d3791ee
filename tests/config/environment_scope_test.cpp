#include <accelerate/environment.h>

#include <stdlib.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "config/environment.h"
#include "config/files/config_document.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace environment_scope_test {

using testing::expect_error;
using testing::TemporaryDirectory;

std::optional<std::string> variable(const std::string& name) {
  const auto all = detail::Environment::current().all();
  const auto found = all.find(name);
  return found == all.end() ? std::nullopt : std::optional(found->second);
}

// Two variables that differ: one set, one not.
class EnvironmentScopeTest : public ::testing::Test {
 protected:
  EnvironmentScopeTest() {
    ::setenv("ACCELERATE_TEST_SET", "before", 1);
    ::unsetenv("ACCELERATE_TEST_UNSET");
  }
  ~EnvironmentScopeTest() override { ::unsetenv("ACCELERATE_TEST_SET"); }
};

TEST_F(EnvironmentScopeTest, SetsAndRestoresVariables) {
  {
    const auto scope = patch_environment(
        {{"accelerate_test_set", "inside"}, {"ACCELERATE_TEST_UNSET", "1"}});
    EXPECT_EQ(variable("ACCELERATE_TEST_SET"), "inside");
    EXPECT_EQ(variable("ACCELERATE_TEST_UNSET"), "1");
    EXPECT_EQ(variable("accelerate_test_set"), std::nullopt);
  }
  EXPECT_EQ(variable("ACCELERATE_TEST_SET"), "before");
  EXPECT_EQ(variable("ACCELERATE_TEST_UNSET"), std::nullopt);
}

TEST_F(EnvironmentScopeTest, RestoresVariablesAfterAnError) {
  expect_error<std::runtime_error>(
      [] {
        const auto scope = patch_environment({{"ACCELERATE_TEST_SET", "x"}});
        throw std::runtime_error("mine");
      },
      "mine");
  EXPECT_EQ(variable("ACCELERATE_TEST_SET"), "before");
}

TEST_F(EnvironmentScopeTest, Nests) {
  {
    const auto outer = patch_environment({{"ACCELERATE_TEST_SET", "outer"}});
    {
      const auto inner = patch_environment({{"ACCELERATE_TEST_SET", "inner"}});
      EXPECT_EQ(variable("ACCELERATE_TEST_SET"), "inner");
    }
    EXPECT_EQ(variable("ACCELERATE_TEST_SET"), "outer");
  }
  EXPECT_EQ(variable("ACCELERATE_TEST_SET"), "before");
}

TEST_F(EnvironmentScopeTest, RefusesInvalidNames) {
  for (const char* name : {"", "A=B"}) {
    expect_error<ConfigError>(
        [&] {
          const auto scope =
              patch_environment({{name, "1"}, {"ACCELERATE_TEST_UNSET", "1"}});
        },
        "the name of a variable must not be empty or contain \"=\"");
  }
  EXPECT_EQ(variable("ACCELERATE_TEST_UNSET"), std::nullopt);
}

TEST_F(EnvironmentScopeTest, EmptiesAndRestoresTheEnvironment) {
  const auto before = detail::Environment::current().all();
  {
    const auto scope = clear_environment();
    EXPECT_TRUE(detail::Environment::current().all().empty());
    ::setenv("ACCELERATE_TEST_UNSET", "1", 1);
  }
  EXPECT_EQ(detail::Environment::current().all(), before);
}

TEST(WriteBasicConfig, WritesOnceForTheDevicesOfThisMachine) {
  const TemporaryDirectory directory;
  const auto file = directory / "inner/config.yaml";
  EXPECT_EQ(
      write_basic_config(
          {.mixed_precision = "bf16", .save_location = file, .num_devices = 2}),
      file);
  const auto values = detail::read_config_document(file).values;
  EXPECT_EQ(values.at("mixed_precision"), "bf16");
  EXPECT_EQ(values.at("num_processes"), 2);
  EXPECT_EQ(values.at("distributed_type"), "MULTI_GPU");
  EXPECT_EQ(values.at("use_cpu"), false);
  const std::string text = detail::read_file(file);
  EXPECT_EQ(
      write_basic_config({.save_location = file, .num_devices = 0}),
      std::nullopt);
  EXPECT_EQ(detail::read_file(file), text);
  expect_error<ConfigError>(
      [&] {
        write_basic_config(
            {.mixed_precision = "fp9", .save_location = directory / "other"});
      },
      "fp9");
  EXPECT_FALSE(std::filesystem::exists(directory / "other"));
}

}  // namespace environment_scope_test
}  // namespace accelerate
