#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/fp8_recipe.h"
#include "engines/sources.h"
#include "support/option_samples.h"

namespace accelerate::detail {
namespace request_settings_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::sample_of;
using testing::sources;
using testing::Variables;

// The settings of a program with these options under these variables, and those
// that a DeepSpeed configuration overruled.
TrainingRequest in_force(
    const ParallelOptions& options,
    const Variables& variables = {}) {
  TrainingRequest found = read_training_request(sources(options, variables));
  EXPECT_THAT(found.complaints, ::testing::IsEmpty());
  return found;
}

// The default in the table is the one in use.
TEST(SettingsInForce, HaveTheDefaultsOfTheTable) {
  for (const ParallelOptions& options :
       {ParallelOptions{.fully_sharded = FullyShardedDataParallelOptions()},
        ParallelOptions{
            .fully_sharded =
                FullyShardedDataParallelOptions{.fsdp_version = 2}},
        ParallelOptions{.deepspeed = DeepSpeedOptions()},
        ParallelOptions{.megatron_lm = MegatronLMOptions()}}) {
    const Settings settings = in_force(options).settings;
    int num_settled = 0;
    for (const auto& [key, value] : settings.all()) {
      if (value.origin != Origin::settled) continue;
      ++num_settled;
      const OptionSpec& spec = *find_option(key);
      if (spec.use != OptionUse::acts || key == "zero3_init_flag") continue;
      EXPECT_EQ(
          format_option(value.value),
          spec.default_value.empty()
              ? ""
              : format_option(parse_option(spec, spec.default_value)))
          << key;
    }
    EXPECT_GE(num_settled, 5);
  }
}

TEST(SettingsInForce, AreCodesThenTheLaunchersThenDefaults) {
  const std::string text =
      in_force(
          {.fully_sharded =
               FullyShardedDataParallelOptions{
                   .sharding_strategy = ShardingStrategy::shard_grad_op,
                   .cpu_offload = true}},
          {{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
           {"FSDP_ACTIVATION_CHECKPOINTING", "true"},
           {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"}})
          .settings.explain(ExplainedRows::of_program);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("use_fsdp = true  (code)\n"),
          HasSubstr("fsdp_sharding_strategy = SHARD_GRAD_OP  (code)\n"),
          HasSubstr("fsdp_offload_params = true  (code)\n"),
          HasSubstr("fsdp_activation_checkpointing = true  (environment "
                    "variable FSDP_ACTIVATION_CHECKPOINTING)\n"),
          HasSubstr("fsdp_cpu_ram_efficient_loading = false  (default)\n"),
          HasSubstr("zero_stage = 3  (environment variable "
                    "ACCELERATE_DEEPSPEED_ZERO_STAGE; without effect)\n")));
  // These are not options of version 1, or were not chosen.
  EXPECT_THAT(
      text,
      AllOf(
          Not(HasSubstr("fsdp_reshard_after_forward")),
          Not(HasSubstr("fsdp_auto_wrap_policy")),
          Not(HasSubstr("megatron_lm_"))));
}

TEST(SettingsInForce, AreThoseOfADeepSpeedConfiguration) {
  const TrainingRequest found = in_force(
      {.deepspeed =
           DeepSpeedOptions{
               .hf_ds_config =
                   R"({"gradient_accumulation_steps": 4,
                       "zero_optimization": {"stage": 1}})"}},
      {{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"}});
  EXPECT_THAT(
      found.settings.explain(ExplainedRows::of_program),
      HasSubstr("zero_stage = 1  (DeepSpeed configuration)\n"));
  ASSERT_EQ(found.overruled.size(), 1u);
  EXPECT_EQ(found.overruled[0].name, "zero_stage");
  EXPECT_EQ(found.overruled[0].instead, "the DeepSpeed configuration says 1");
  EXPECT_EQ(
      found.overruled[0].origin,
      "environment variable ACCELERATE_DEEPSPEED_ZERO_STAGE");
}

TEST(SettingsInForce, HaveAConfigurationAsItWasGiven) {
  const std::string config = R"({"zero_optimization": {"stage": 1}})";
  const TrainingRequest found = in_force(
      {},
      {{"ACCELERATE_USE_DEEPSPEED", "true"},
       {"ACCELERATE_DEEPSPEED_CONFIG_FILE", config}});
  EXPECT_THAT(
      found.settings.explain(ExplainedRows::of_program),
      HasSubstr(
          "deepspeed_config_file = " + config +
          "  (environment variable ACCELERATE_DEEPSPEED_CONFIG_FILE)\n"));
  EXPECT_THAT(names_of(found.overruled), ::testing::IsEmpty());
}

TEST(SettingsInForce, SayOnceThatASettingIsForAnotherStage) {
  const TrainingRequest found = in_force(
      {},
      {{"ACCELERATE_USE_DEEPSPEED", "true"},
       {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}});
  EXPECT_THAT(
      names_of(found.ignored),
      ::testing::ElementsAre("zero3_init_flag (only zero_stage 3 has it)"));
  EXPECT_THAT(names_of(found.overruled), ::testing::IsEmpty());
}

// Returns the variables that must also be set for this setting to have an
// effect.
Variables company_of(const OptionSpec& spec) {
  Variables variables;
  if (spec.section == "fsdp_config") variables["ACCELERATE_USE_FSDP"] = "true";
  if (spec.section == "deepspeed_config")
    variables["ACCELERATE_USE_DEEPSPEED"] = "true";
  if (spec.section == "megatron_lm_config")
    variables["ACCELERATE_USE_MEGATRON_LM"] = "true";
  if (spec.key == "fsdp_min_num_params")
    variables["FSDP_AUTO_WRAP_POLICY"] = "SIZE_BASED_WRAP";
  if (spec.key == "fsdp_transformer_layer_cls_to_wrap")
    variables["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP";
  if (spec.key == "fsdp_offload_directory")
    variables["FSDP_OFFLOAD_PARAMS"] = "true";
  if (spec.key == "fsdp_reshard_after_forward") variables["FSDP_VERSION"] = "2";
  if (spec.key == "fsdp_activation_checkpointing_offload") {
    variables["FSDP_VERSION"] = "2";
    variables["FSDP_ACTIVATION_CHECKPOINTING"] = "true";
  }
  if (spec.key.starts_with("parallelism_config_cp_"))
    variables["PARALLELISM_CONFIG_CP_SIZE"] = "2";
  if (spec.key.starts_with("parallelism_config_sp_seq")) {
    variables["PARALLELISM_CONFIG_SP_SIZE"] = "2";
    variables["PARALLELISM_CONFIG_SP_SEQ_LENGTH"] = "8";
    variables["PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"] = "false";
  }
  if (spec.key == "use_parallelism_config")
    variables["PARALLELISM_CONFIG_DP_SHARD_SIZE"] = "2";
  if (spec.section == "fp8_config" && spec.key != "fp8_pad_inner_dim" &&
      spec.key != "fp8_enable_fsdp_float8_all_gather")
    variables["ACCELERATE_FP8_BACKEND"] = "te";
  // Only MS-AMP has optimization levels.
  if (spec.key == "fp8_opt_level" || spec.key == "fp8_optimization_level")
    variables["ACCELERATE_FP8_BACKEND"] = "msamp";
  return variables;
}

// The marks on the option page say which settings have an effect: unmarked ones
// are read, and all others are reported.
TEST(OptionMarks, OfEnginesSayWhatIsRead) {
  for (const OptionSpec& spec : option_table()) {
    const bool is_switch = spec.key.starts_with("use_") &&
        spec.key != "use_cpu" && !spec.variable.empty();
    if (spec.variable.empty() || (spec.section.empty() && !is_switch)) continue;
    // The value of an option with a single choice is its default and changes
    // nothing.
    if (sample_of(spec).empty()) continue;
    Variables variables = company_of(spec);
    variables[std::string(spec.variable)] = sample_of(spec);
    const RequestSources given = sources({}, variables);
    read_training_request(given);
    if (spec.section == "fp8_config" && spec.key != "fp8_backend")
      read_float8_request({}, given.settings, given.environment);
    if (spec.key == "fp8_backend")
      read_float8_request(AORecipeKwargs(), given.settings, given.environment);
    std::vector<std::string> unread;
    for (const GivenSetting& setting : given.settings.unread())
      unread.push_back(setting.key);
    const std::string key(spec.key);
    if (spec.use == OptionUse::acts) {
      EXPECT_THAT(unread, Not(::testing::Contains(key)));
      EXPECT_TRUE(given.settings.was_read(key)) << key;
    } else {
      EXPECT_THAT(unread, ::testing::Contains(key));
    }
  }
}

TEST(OptionMarks, OfAnEngineThatIsNotInUseDoNotMatter) {
  const RequestSources given =
      sources({}, {{"FSDP_VERSION", "2"}, {"MEGATRON_LM_TP_DEGREE", "2"}});
  read_training_request(given);
  std::vector<std::string> unread;
  for (const GivenSetting& setting : given.settings.unread())
    unread.push_back(setting.key);
  EXPECT_THAT(
      unread, ::testing::ElementsAre("fsdp_version", "megatron_lm_tp_degree"));
}

}  // namespace request_settings_test
}  // namespace accelerate::detail
