#include "config/files/config_file.h"

#include <array>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace config_file_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::Pair;

class ConfigFileTest : public ::testing::Test {
 protected:
  Source read(
      const std::string& text,
      const std::string& name = "config.yaml") {
    std::ofstream(directory_ / name) << text;
    return source_from_config(read_config_document(directory_ / name));
  }
  Settings settings(
      const std::string& text,
      const std::string& name = "config.yaml") {
    const std::array sources{read(text, name)};
    return resolve(sources);
  }

  testing::TemporaryDirectory directory_;
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
      settings(
          R"({"distributed_type": "MULTI_CPU", "num_processes": 3})",
          "config.json")
          .integer("num_processes"),
      3);
}

TEST_F(ConfigFileTest, FlattensMapsAndAddsTheirPrefixes) {
  const Settings values = settings(
      "distributed_type: FSDP\nnum_processes: 2\n"
      "fsdp_config:\n  fsdp_version: 2\n  min_num_params: 7\n"
      "  fsdp_offload_params: yes\n"
      "deepspeed_config: {gradient_accumulation_steps: 4}\n"
      "fp8_config: {format: e4m3}\n");
  EXPECT_EQ(values.text("fsdp_version"), "2");
  EXPECT_EQ(values.integer("fsdp_min_num_params"), 7);
  EXPECT_TRUE(values.boolean("fsdp_offload_params"));
  EXPECT_EQ(values.integer("gradient_accumulation_steps"), 4);
  EXPECT_EQ(values.text("fp8_format"), "E4M3");
}

TEST_F(ConfigFileTest, ReadsNoWithoutQuotesAsAString) {
  const Settings values =
      settings("distributed_type: NO\nmixed_precision: no\n");
  EXPECT_EQ(values.text("distributed_type"), "NO");
  EXPECT_EQ(values.text("mixed_precision"), "no");
  EXPECT_EQ(values.integer("num_processes"), 1);
}

TEST_F(ConfigFileTest, ReplacesKeysOfOldVersions) {
  const Settings values = settings(
      "distributed_type: 'NO'\nfp16: true\ndynamo_backend: INDUCTOR\n");
  EXPECT_EQ(values.text("mixed_precision"), "fp16");
  EXPECT_EQ(values.text("dynamo_backend"), "inductor");
}

TEST_F(ConfigFileTest, RequiresADistributedTypeAsAccelerateDoes) {
  expect_error<ConfigError>(
      [&] { read("num_processes: 2\n"); }, "distributed_type is missing");
  expect_error<ConfigError>(
      [&] { read("distributed_type: MULTI_CUP\n"); }, "line 1");
}

TEST_F(ConfigFileTest, RefusesAJobOfSageMaker) {
  expect_error<ConfigError>(
      [&] {
        read(
            "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n"
            "ec2_instance_type: x\niam_role_name: y\n");
      },
      "Amazon's Python SDK");
}

TEST_F(ConfigFileTest, NamesUnknownKeysInMapsWithTheirLines) {
  expect_error<ConfigError>(
      [&] {
        read("distributed_type: FSDP\nfsdp_config:\n  fsdp_verzion: 2\n");
      },
      "line 3); did you mean \"fsdp_version\"");
}

// Accelerate takes a section without a value as an empty one.
TEST_F(ConfigFileTest, TakesSectionsWithoutAValueAsEmptyOnes) {
  for (const std::string section :
       {"fsdp_config",
        "deepspeed_config",
        "megatron_lm_config",
        "fp8_config",
        "dynamo_config",
        "mpirun_config",
        "parallelism_config"}) {
    for (const std::string value : {"", " null", " ~", " {}", " []"}) {
      const std::string text = "distributed_type: MULTI_CPU\n" + section + ":" +
          value + "\nnum_processes: 2\n";
      EXPECT_EQ(settings(text).integer("num_processes"), 2) << text;
    }
    const std::string json = R"({"distributed_type": "MULTI_CPU", ")" +
        section + R"(": null, "num_processes": 2})";
    EXPECT_EQ(settings(json, "config.json").integer("num_processes"), 2);
    expect_error<ConfigError>(
        [&] { read("distributed_type: MULTI_CPU\n" + section + ": 3\n"); },
        section + " must be a map, but is 3 (file ");
  }
}

TEST_F(ConfigFileTest, LeavesOutKeysThatAccelerateNoLongerHas) {
  const std::string text =
      "distributed_type: MULTI_CPU\nnum_processes: 2\n"
      "ipex_config:\n  ipex: false\n  use_xpu: false\n"
      "tp_config:\n  tp_size: 4\n"
      "mpirun_config:\n  mpirun_ccl: '1'\n  mpirun_hostfile: hosts\n";
  const Settings values = settings(text);
  EXPECT_EQ(values.integer("num_processes"), 2);
  EXPECT_EQ(values.text("mpirun_hostfile"), "hosts");
  const ConfigDocument document = parse_config(text, "old.yaml");
  EXPECT_THAT(
      retired_keys(document),
      ElementsAre(
          "ipex_config (file old.yaml)",
          "tp_config (file old.yaml; use parallelism_config_tp_size in "
          "parallelism_config)",
          "mpirun_config.mpirun_ccl (file old.yaml)"));
  // `config update` writes the file without them.
  const std::string updated =
      updated_text(document, values_to_write(values_in_force(document)));
  EXPECT_THAT(retired_keys(parse_config(updated, "new.yaml")), ElementsAre());
  EXPECT_THAT(updated, ::testing::HasSubstr("mpirun_hostfile: hosts"));
  EXPECT_THAT(updated, ::testing::Not(::testing::HasSubstr("ipex")));
}

TEST_F(ConfigFileTest, SuggestsNothingThatIsFarAway) {
  try {
    read("distributed_type: MULTI_CPU\nipx_konfig: 1\n");
    FAIL() << "the key is unknown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        std::string(error.what()),
        ::testing::Not(::testing::HasSubstr("did you mean")));
  }
}

TEST(UpdatedText, KeepsCommentsAndOrder) {
  const auto document = parse_config(
      "# ours\nnum_processes: 2 # two\ndistributed_type: MULTI_CPU\n\n"
      "# old\nfp16: true\n# last\n",
      "config.yaml");
  EXPECT_EQ(
      updated_text(
          document,
          {{"distributed_type", "MULTI_CPU"},
           {"num_processes", 2},
           {"mixed_precision", "fp16"},
           {"debug", false}}),
      "# ours\nnum_processes: 2 # two\ndistributed_type: MULTI_CPU\n"
      "debug: false\nmixed_precision: fp16\n");
}

TEST(WriteConfig, QuotesStringsThatYamlWouldReadOtherwise) {
  const ConfigJson values{
      {"a", "no"},
      {"b", "12"},
      {"c", "it's: #1"},
      {"d", nlohmann::ordered_json::array({"x", "yes"})},
      {"e", {{"inner", 1.5}}},
      {"f", "two\nlines"},
      {"g", ""},
      {"h", nullptr}};
  const auto read = parse_config(write_config(values, false), "x.yaml");
  EXPECT_EQ(read.values, values) << write_config(values, false);
  EXPECT_EQ(parse_config(write_config(values, true), "x.json").values, values);
}

TEST_F(ConfigFileTest, NamesUnknownKeysAndTheNearestKnown) {
  expect_error<ConfigError>(
      [&] { read("num_procesess: 2\n"); }, "num_processes");
}

TEST_F(ConfigFileTest, NamesTheFileThatDoesNotParseOrDoesNotExist) {
  expect_error<ConfigError>([&] { read("a: [1, 2\n"); }, "config.yaml");
  expect_error<ConfigError>(
      [&] { read_config_document(directory_ / "none.yaml"); }, "none.yaml");
}

TEST_F(ConfigFileTest, ReadsAnEmptyFileAsNoSettings) {
  EXPECT_TRUE(read("").values.empty());
}

TEST_F(ConfigFileTest, TakesAnEmptyListAsNotGiven) {
  const Settings values =
      settings("distributed_type: 'NO'\ntpu_env: []\ncommands: []\n");
  EXPECT_FALSE(values.is_given("tpu_env"));
  EXPECT_FALSE(values.is_given("commands"));
  EXPECT_TRUE(
      settings("distributed_type: 'NO'\ntpu_env: [A=1]\n").is_given("tpu_env"));
}

TEST_F(ConfigFileTest, RefusesAliasesThatContainThemselves) {
  expect_error<ConfigError>(
      [&] { read("a: &x\n  b: *x\n"); }, "more than 32 levels deep");
  expect_error<ConfigError>(
      [&] { read("a: &x [*x, *x]\n"); }, "more than 32 levels deep");
}

TEST_F(ConfigFileTest, RefusesAliasesThatExpandWithoutBound) {
  std::string text = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string inner = "*l" + std::to_string(i - 1);
    text += "l" + std::to_string(i) + ": &l" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) text += (j == 0 ? "" : ", ") + inner;
    text += "]\n";
  }
  expect_error<ConfigError>([&] { read(text); }, "more than 10000 values");
}

TEST_F(ConfigFileTest, RefusesAliasesThatRepeatLongText) {
  const auto repeated = [](std::size_t num_bytes) {
    std::string text = "a: &a " + std::string(num_bytes, 'x') + "\nb: [";
    for (int i = 0; i < 64; ++i) text += "*a, ";
    return text + "]\n";
  };
  expect_error<ConfigError>(
      [&] { parse_config(repeated(2000), "config.yaml"); },
      "holds more than 65536 bytes that come from aliases");
  EXPECT_EQ(parse_config(repeated(1000), "config.yaml").values["b"].size(), 64);
}

TEST_F(ConfigFileTest, NamesValuesOfTheFileAndOfItsMapsOnly) {
  const ConfigDocument file = parse_config(
      "a: 1\nmap:\n  b: yes\n  inner: {c: 2}\nlist: [{a: 3}]\n", "run.yaml");
  EXPECT_THAT(file.scalars, ElementsAre(Pair("a", "1"), Pair("map.b", "yes")));
  EXPECT_THAT(
      file.lines,
      ElementsAre(
          Pair("a", 1),
          Pair("list", 5),
          Pair("map", 2),
          Pair("map.b", 3),
          Pair("map.inner", 4)));
}

// Each such name would be as long as its enclosing keys.
TEST_F(ConfigFileTest, KeepsNoNamesLongerThanSettingsHave) {
  const std::string key(100'000, 'k');
  const ConfigDocument file =
      parse_config("? " + key + "\n: {a: 1, b: 2}\nmap: {a: 1}\n", "run.yaml");
  EXPECT_EQ(file.values[key]["b"], 2);
  EXPECT_THAT(file.lines, ElementsAre(Pair("map", 3), Pair("map.a", 3)));
  try {
    static_cast<void>(source_from_config(file));
    FAIL() << "unknown keys";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("kkk...kkk"));
    EXPECT_LT(std::string_view(error.what()).size(), 2000);
  }
}

TEST_F(ConfigFileTest, RefusesFilesThatHoldMoreThanSettings) {
  std::string many, one;
  for (int i = 0; i < 100'000; ++i) many += "k" + std::to_string(i) + ": 1\n";
  expect_error<ConfigError>(
      [&] { read(many); }, "line 10000, holds more than 10000 values");
  one.assign((1 << 20) + 1, '#');
  expect_error<ConfigError>([&] { read(one); }, "is longer than 1048576 bytes");
  expect_error<ConfigError>(
      [] { read_config_document("/dev/zero"); },
      "/dev/zero is longer than 1048576 bytes");
}

TEST_F(ConfigFileTest, NamesSomeOfManyUnknownKeys) {
  std::string text = "distributed_type: FSDP\n", inner = "fsdp_config:\n";
  for (int i = 0; i < 30; ++i) {
    text += "unknown_" + std::to_string(i) + ": 1\n";
    inner += "  odd_" + std::to_string(i) + ": 1\n";
  }
  expect_error<ConfigError>([&] { read(text); }, "and 10 more unknown keys");
  expect_error<ConfigError>(
      [&] { read("distributed_type: FSDP\n" + inner); },
      "and 10 more unknown keys");
}

TEST_F(ConfigFileTest, RefusesKeysThatAreNotWords) {
  for (const std::string text : {"? [a, b]\n: 1\n", "{a: 1}: 2\n", "~: 1\n"}) {
    expect_error<ConfigError>([&] { read(text); }, "line 1");
  }
  expect_error<ConfigError>(
      [&] { read("? [a, b]\n: 1\n"); },
      "a key must be a plain word, as in \"key: value\", but is a list, a map "
      "or empty");
}

TEST_F(ConfigFileTest, RefusesTextThatIsNotUtf8) {
  for (const std::string line :
       {"log_dir: caf\xe9\n", "l\xe9g: 1\n", "fsdp_config: {a: [\xe9]}\n"}) {
    expect_error<ConfigError>(
        [&] { read("distributed_type: FSDP\n" + line); },
        "line 2, contains bytes that are not UTF-8");
  }
  EXPECT_EQ(
      settings("distributed_type: 'NO'\nmain_process_ip: caf\u00e9\n")
          .text("main_process_ip"),
      "caf\u00e9");
}

TEST_F(ConfigFileTest, TakesTheLastOfEqualKeys) {
  EXPECT_EQ(
      settings("distributed_type: 'NO'\nnum_processes: 2\nnum_processes: 3\n")
          .integer("num_processes"),
      3);
}

TEST_F(ConfigFileTest, SaysWhyAFileCannotBeRead) {
  expect_error<ConfigError>(
      [&] { read_config_document(directory_.path()); },
      "cannot be read: Is a directory");
  std::filesystem::create_symlink(
      directory_ / "loop.yaml", directory_ / "loop.yaml");
  expect_error<ConfigError>(
      [&] { read_config_document(directory_ / "loop.yaml"); },
      "cannot be read: Too many levels of symbolic links");
}

TEST_F(ConfigFileTest, FindsTheDefaultFileOrWhyItCannotBeRead) {
  Environment environment;
  EXPECT_TRUE(find_default_config(environment).path.empty());
  environment.set("HF_HOME", directory_.path());
  EXPECT_FALSE(find_default_config(environment).exists);
  EXPECT_EQ(find_default_config(environment).problem, "");
  std::filesystem::create_directory(directory_ / "accelerate");
  std::ofstream(directory_ / "accelerate/default_config.yaml") << "debug: no\n";
  EXPECT_TRUE(find_default_config(environment).exists);
  // A symlink loop, because permissions do not stop root.
  std::filesystem::create_directory_symlink(
      directory_ / "home", directory_ / "home");
  environment.set("HF_HOME", directory_ / "home");
  const DefaultConfig found = find_default_config(environment);
  EXPECT_FALSE(found.exists);
  EXPECT_EQ(found.problem, "Too many levels of symbolic links");
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

}  // namespace config_file_test
}  // namespace accelerate::detail
