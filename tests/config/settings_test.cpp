#include "config/settings.h"

#include <array>
#include <thread>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "config/user_variables.h"
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
      [&] { launch_settings(environment); }, "must be a JSON object");
}

std::vector<std::string> unread(const Settings& settings) {
  std::vector<std::string> lines;
  for (const GivenSetting& setting : settings.unread())
    lines.push_back(setting.key + " from " + setting.where);
  return lines;
}

Settings settings_of(
    std::initializer_list<std::pair<std::string, std::string>> variables) {
  Environment environment;
  for (const auto& [name, value] : variables) environment.set(name, value);
  return launch_settings(environment);
}

TEST(Unread, ListsWhatWasGivenUntilItIsRead) {
  const Settings settings = settings_of(
      {{"FSDP_VERSION", "2"}, {"ACCELERATE_MIXED_PRECISION", "bf16"}});
  EXPECT_THAT(
      unread(settings),
      ::testing::ElementsAre(
          "mixed_precision from environment variable "
          "ACCELERATE_MIXED_PRECISION",
          "fsdp_version from environment variable FSDP_VERSION"));
  const Settings copy = settings;
  EXPECT_EQ(copy.text("mixed_precision"), "bf16");
  EXPECT_THAT(
      unread(settings),
      ::testing::ElementsAre(
          "fsdp_version from environment variable FSDP_VERSION"));
  EXPECT_NE(settings.find("fsdp_version"), nullptr);
  EXPECT_TRUE(settings.is_given("fsdp_version"));
  EXPECT_FALSE(settings.was_read("fsdp_version"));
  EXPECT_EQ(settings.as_written("fsdp_version"), "2");
  EXPECT_TRUE(settings.was_read("fsdp_version"));
  EXPECT_THAT(unread(settings), ::testing::IsEmpty());
}

TEST(Unread, ListsWhatTheLibraryNeverActsOnEvenIfItReadsIt) {
  const Settings settings = settings_of(
      {{"ACCELERATE_DYNAMO_BACKEND", "inductor"},
       {"ACCELERATE_FP8_MARGIN", "3"},
       {"MEGATRON_LM_NUM_MICRO_BATCHES", "4"}});
  EXPECT_EQ(settings.text("dynamo_backend"), "inductor");
  EXPECT_THAT(
      unread(settings),
      ::testing::ElementsAre(
          "megatron_lm_num_micro_batches from environment variable "
          "MEGATRON_LM_NUM_MICRO_BATCHES",
          "dynamo_backend from environment variable ACCELERATE_DYNAMO_BACKEND",
          "fp8_margin from environment variable ACCELERATE_FP8_MARGIN"));
}

TEST(Unread, LeavesOutValuesThatChangeNothing) {
  // Defaults of this library and of Accelerate's launcher, which exports most
  // of them.
  EXPECT_THAT(
      unread(settings_of(
          {{"ACCELERATE_DYNAMO_BACKEND", "NO"},
           {"ACCELERATE_DYNAMO_MODE", "default"},
           {"FSDP_USE_ORIG_PARAMS", "true"},
           {"FSDP_MIN_NUM_PARAMS", "100000000"},
           {"MEGATRON_LM_NUM_MICRO_BATCHES", "1"},
           {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "1"}})),
      ::testing::IsEmpty());
}

TEST(Unread, LeavesOutWhatTheLauncherActsOnAndWhatCodeOverrides) {
  const std::array given{
      source_of(Origin::launcher, "num_processes", "4"),
      source_of(Origin::launcher, "enable_cpu_affinity", "true"),
      source_of(Origin::environment, "num_cpu_threads_per_process", "3"),
      source_of(Origin::environment, "fsdp_version", "2"),
      source_of(Origin::code, "fsdp_version", "1")};
  EXPECT_THAT(unread(resolve(given)), ::testing::IsEmpty());
  // No launcher of ours acts on the variable.
  EXPECT_THAT(
      unread(settings_of({{"ACCELERATE_CPU_AFFINITY", "1"}})),
      ::testing::ElementsAre("enable_cpu_affinity from environment variable "
                             "ACCELERATE_CPU_AFFINITY"));
}

TEST(Unread, LeavesOutWhatTheLauncherHasReported) {
  const std::array given{
      source_of(Origin::flag, "dynamo_backend", "inductor"),
      source_of(Origin::flag, "fsdp_version", "2")};
  Environment environment;
  environment.set(
      std::string(kHandoverVariable),
      to_handover(resolve(given), {"dynamo_backend"}));
  EXPECT_THAT(
      unread(launch_settings(environment)),
      ::testing::ElementsAre("fsdp_version from test"));
}

TEST(Unread, IsSafeForSeveralThreads) {
  const std::array given{
      source_of(Origin::flag, "fsdp_version", "2"),
      source_of(Origin::flag, "mixed_precision", "bf16")};
  const Settings settings = resolve(given);
  std::vector<std::thread> threads;
  for (const char* const key : {"fsdp_version", "mixed_precision"}) {
    threads.emplace_back([&settings, key] {
      for (int i = 0; i < 1000; ++i) {
        EXPECT_TRUE(settings.text(key).has_value());
        EXPECT_LE(settings.unread().size(), 2u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(unread(settings), ::testing::IsEmpty());
}

TEST(Settings, SettleOnlyWhatNobodyGave) {
  const std::array given{source_of(Origin::flag, "mixed_precision", "bf16")};
  Settings settings = resolve(given);
  settings.settle("mixed_precision", "fp16", "elsewhere");
  settings.settle("parallelism_config_dp_shard_size", 4, "from the ranks");
  settings.settle("zero_stage", 3, "default");
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_FALSE(settings.is_given("parallelism_config_dp_shard_size"));
  EXPECT_THAT(
      settings.explain(),
      ::testing::AllOf(
          ::testing::HasSubstr(
              "parallelism_config_dp_shard_size = 4  (from the ranks)\n"),
          ::testing::HasSubstr("zero_stage = 3  (default)\n")));
  settings.overrule("mixed_precision", "fp16", "elsewhere");
  EXPECT_EQ(settings.text("mixed_precision"), "fp16");
  // Only settings that were given are handed over.
  EXPECT_EQ(
      to_handover(settings),
      R"({"mixed_precision":"fp16","origins":{"mixed_precision":"elsewhere"}})");
}

TEST(Settings, ExplainLeavesOutEnginesThatAreNotInUse) {
  const Settings settings = settings_of({{"FSDP_VERSION", "2"}});
  EXPECT_THAT(
      settings.explain(),
      ::testing::AllOf(
          ::testing::HasSubstr("max_restarts = 0  (default)\n"),
          ::testing::Not(::testing::HasSubstr("fsdp_min_num_params"))));
  EXPECT_THAT(
      settings.explain(ExplainedRows::of_program),
      ::testing::AllOf(
          ::testing::HasSubstr("fsdp_version = 2  (environment variable "
                               "FSDP_VERSION; without effect)\n"),
          ::testing::Not(::testing::HasSubstr("max_restarts"))));
}

TEST(NcclVariables, AreListedInTheFormOfSettings) {
  Environment environment;
  environment.set("NCCL_DEBUG", "INFO");
  environment.set("NCCL_IB_HCA", "mlx5\n");
  environment.set("NCCLX", "1");
  EXPECT_EQ(
      explain_nccl_variables(environment),
      "NCCL_DEBUG = INFO  (environment variable; NCCL reads it itself)\n"
      "NCCL_IB_HCA = " +
          printable("mlx5\n") +
          "  (environment variable; NCCL reads it itself)\n");
  EXPECT_EQ(explain_nccl_variables({}), "");
}

}  // namespace settings_test
}  // namespace accelerate::detail
