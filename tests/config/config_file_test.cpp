#include "config/config_file.h"

#include <array>
#include <fstream>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace accelerate::detail {
namespace {

using testing::expect_error;

class ConfigFileTest : public ::testing::Test {
 protected:
  ConfigFile read(
      const std::string& text,
      const std::string& name = "config.yaml") {
    std::ofstream(folder_ / name) << text;
    return read_config_file(folder_ / name);
  }
  Settings settings(
      const std::string& text,
      const std::string& name = "config.yaml") {
    const std::array sources{read(text, name).source};
    return resolve(sources);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ConfigFileTest, ReadsTheFilesThatAccelerateWrites) {
  const std::string text =
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: "
      "MULTI_CPU\n"
      "mixed_precision: bf16\nnum_processes: 4\nuse_cpu: true\n"
      "parallelism_config:\n  parallelism_config_dp_replicate_size: 4\n";
  const Settings values = settings(text);
  EXPECT_EQ(values.text("mixed_precision"), "bf16");
  EXPECT_EQ(values.integer("num_processes"), 4);
  EXPECT_TRUE(values.boolean("use_cpu"));
  EXPECT_EQ(values.integer("parallelism_config_dp_replicate_size"), 4);
  EXPECT_THAT(
      values.find("num_processes")->where, ::testing::HasSubstr("config.yaml"));
}

TEST_F(ConfigFileTest, ReadsJson) {
  EXPECT_EQ(
      settings(R"({"num_processes": 3})", "config.json")
          .integer("num_processes"),
      3);
}

TEST_F(ConfigFileTest, NamesKeysWithoutEffect) {
  EXPECT_THAT(
      read("fsdp_config:\n  fsdp_version: 2\n").without_effect,
      ::testing::ElementsAre("fsdp_config"));
}

TEST_F(ConfigFileTest, NamesUnknownKeysAndTheNearestKnown) {
  expect_error<ConfigError>(
      [&] { read("num_procesess: 2\n"); }, "num_processes");
}

TEST_F(ConfigFileTest, NamesTheFileThatDoesNotParseOrDoesNotExist) {
  expect_error<ConfigError>([&] { read("a: [1, 2\n"); }, "config.yaml");
  expect_error<ConfigError>(
      [&] { read_config_file(folder_ / "none.yaml"); }, "none.yaml");
}

TEST_F(ConfigFileTest, TakesAnEmptyFileAsNoSettings) {
  EXPECT_TRUE(read("").source.values.empty());
}

TEST(DefaultConfigPath, FollowsAccelerate) {
  Environment environment;
  EXPECT_EQ(default_config_path(environment), std::nullopt);
  environment.set("HOME", "/home/u");
  EXPECT_EQ(
      default_config_path(environment),
      "/home/u/.cache/huggingface/accelerate/default_config.yaml");
  environment.set("XDG_CACHE_HOME", "/c");
  EXPECT_EQ(
      default_config_path(environment),
      "/c/huggingface/accelerate/default_config.yaml");
  environment.set("HF_HOME", "/hf");
  EXPECT_EQ(
      default_config_path(environment), "/hf/accelerate/default_config.yaml");
}

}  // namespace
}  // namespace accelerate::detail
