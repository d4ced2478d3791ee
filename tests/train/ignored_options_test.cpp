#include "train/settings/ignored_options.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace ignored_options_test {

using detail::names_of;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names(const AcceleratorOptions& options) {
  return names_of(detail::options_without_effect(
      options, options.mixed_precision.value_or(Precision::no)));
}

// Returns the warnings that a program with these options logs.
std::string warnings_of(AcceleratorOptions options) {
  std::string warnings;
  options.world.rank = 0;
  options.world.size = 1;
  options.world.device = at::kCPU;
  options.world.logger = Logger(
      [&](const LogRecord& record) { warnings += std::string(record.message); },
      LogLevel::warning);
  const Accelerator accelerator(options);
  accelerator.finish();
  return warnings;
}

TEST(OptionsWithoutEffect, AreNotListedIfTheyKeepTheirDefaults) {
  EXPECT_THAT(names({}), IsEmpty());
  EXPECT_THAT(warnings_of({}), IsEmpty());
}

TEST(OptionsWithoutEffect, AreListedIfTheyAreGiven) {
  AcceleratorOptions options;
  options.parallel.replicate_options.power_sgd.warm_start = false;
  EXPECT_THAT(
      names(options),
      ElementsAre("replicate_options.power_sgd (comm_hook is not PowerSGD)"));
}

TEST(OptionsWithoutEffect, AreThoseOfAnotherPrecision) {
  const std::vector<GradScalerOptions> scalers{
      {.init_scale = 2},
      {.growth_factor = 3},
      {.backoff_factor = 0.25},
      {.growth_interval = 5},
      {.enabled = false}};
  for (const GradScalerOptions& scaler : scalers) {
    EXPECT_THAT(
        names({.grad_scaler = scaler}),
        ElementsAre("grad_scaler (mixed_precision is no)"));
    EXPECT_THAT(
        names({.mixed_precision = Precision::bf16, .grad_scaler = scaler}),
        ElementsAre("grad_scaler (mixed_precision is bf16)"));
    EXPECT_THAT(
        names({.mixed_precision = Precision::fp16, .grad_scaler = scaler}),
        IsEmpty());
  }
  EXPECT_THAT(
      names(
          {.mixed_precision = Precision::fp16,
           .grad_scaler = {.init_scale = 2, .enabled = false}}),
      ElementsAre("grad_scaler (enabled is false)"));
  const std::vector<AutocastOptions> scopes{
      {.enabled = false}, {.cache_enabled = true}};
  for (const AutocastOptions& autocast : scopes) {
    EXPECT_THAT(
        names({.autocast = autocast}),
        ElementsAre("autocast (mixed_precision is no)"));
    for (const Precision precision :
         {Precision::bf16, Precision::fp16, Precision::fp8}) {
      EXPECT_THAT(
          names({.mixed_precision = precision, .autocast = autocast}),
          IsEmpty());
    }
  }
}

// The precision in force can be the launcher's or an engine's.
TEST(OptionsWithoutEffect, KnowThePrecisionInForce) {
  {
    const auto scope =
        patch_environment({{"ACCELERATE_MIXED_PRECISION", "bf16"}});
    EXPECT_THAT(warnings_of({.autocast = {.cache_enabled = false}}), IsEmpty());
  }
  EXPECT_THAT(
      warnings_of({.autocast = {.cache_enabled = false}}),
      HasSubstr("autocast (code; mixed_precision is no)"));
  const auto deepspeed = [](const char* config) {
    return ParallelOptions{
        .deepspeed = DeepSpeedOptions{.hf_ds_config = config}};
  };
  EXPECT_THAT(
      warnings_of(
          {.autocast = {.cache_enabled = false},
           .parallel = deepspeed(R"({"bf16": {"enabled": true},
                     "zero_optimization": {"stage": 0}})")}),
      IsEmpty());
}

TEST(OptionsWithoutEffect, AreThoseOfALongerWindow) {
  const std::vector<std::pair<std::string, GradientAccumulationOptions>> fields{
      {"sync_with_dataloader", {.sync_with_dataloader = false}},
      {"sync_each_batch", {.sync_each_batch = true}},
      {"divide_by_full_window", {.divide_by_full_window = true}}};
  for (const auto& [name, accumulation] : fields) {
    EXPECT_THAT(
        warnings_of({.gradient_accumulation = accumulation}),
        HasSubstr(
            "have no effect in this program: gradient_accumulation." + name +
            " (code; gradient_accumulation_steps is 1)"));
    EXPECT_THAT(
        warnings_of(
            {.gradient_accumulation_steps = 2,
             .gradient_accumulation = accumulation}),
        IsEmpty());
  }
}

TEST(OptionsWithoutEffect, LookAtTheWindowWhenTheFirstStepBegins) {
  std::string warnings;
  AcceleratorOptions options{
      .gradient_accumulation = {.sync_each_batch = true}};
  options.world = {.rank = 0, .size = 1, .device = at::kCPU};
  options.world.logger = Logger(
      [&](const LogRecord& record) { warnings += std::string(record.message); },
      LogLevel::warning);
  const Accelerator accelerator(options);
  accelerator.gradient_state().set_num_steps(2);
  accelerator.finish();
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(OptionsWithoutEffect, OfFp8AreReportedByTheProgram) {
  EXPECT_THAT(
      warnings_of({.fp8_recipe = AORecipeKwargs()}),
      HasSubstr("fp8_recipe (code; mixed_precision is not fp8)"));
  EXPECT_THAT(
      warnings_of({.fp8_statistics_interval = 5}),
      HasSubstr("fp8_statistics_interval (code; mixed_precision is not fp8)"));
  EXPECT_THAT(
      warnings_of(
          {.mixed_precision = Precision::fp8,
           .fp8_recipe =
               AORecipeKwargs{.enable_fsdp_float8_all_gather = true}}),
      HasSubstr("enable_fsdp_float8_all_gather"));
  EXPECT_THAT(
      warnings_of({.fp8_attention = Float8Attention::per_head}),
      HasSubstr("fp8_attention (code; mixed_precision is not fp8)"));
}

// ZeRO shards parameters only from stage 3 on.
TEST(OptionsWithoutEffect, AreFloat8GathersWhereNothingIsGathered) {
  const auto warnings_with = [](int num_ranks, int zero_stage) {
    std::mutex mutex;
    std::string warnings;
    testing::run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      AcceleratorOptions options{
          .mixed_precision = Precision::fp8,
          .fp8_recipe = AORecipeKwargs{.enable_fsdp_float8_all_gather = true},
          .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = zero_stage}},
          .world = world};
      options.world.logger = Logger(
          [&](const LogRecord& record) {
            const std::lock_guard lock(mutex);
            warnings += std::string(record.message);
          },
          LogLevel::warning);
      const Accelerator accelerator(options);
      accelerator.finish();
    });
    return warnings;
  };
  for (const int num_ranks : {1, 2}) {
    for (const int zero_stage : {1, 2}) {
      EXPECT_THAT(
          warnings_with(num_ranks, zero_stage),
          HasSubstr("enable_fsdp_float8_all_gather (code; no parameters "
                    "are sharded)"));
    }
    EXPECT_THAT(
        warnings_with(num_ranks, 3),
        ::testing::Not(HasSubstr("enable_fsdp_float8_all_gather")));
  }
}

TEST(OptionsWithoutEffect, AreReportedByTheProgram) {
  EXPECT_THAT(
      warnings_of(
          {.parallel =
               {.replicate_options = {.power_sgd = {.warm_start = false}}}}),
      HasSubstr("have no effect in this program: replicate_options.power_sgd"));
  EXPECT_THAT(
      warnings_of(
          {.parallel =
               {.deepspeed =
                    DeepSpeedOptions{.transformer_moe_cls_names = "Experts"}}}),
      HasSubstr("transformer_moe_cls_names"));
}

TEST(OptionsWithoutEffect, AreCheckedLikeOthers) {
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1};
  options.profile =
      ProfileOptions{.schedule_option = ProfileSchedule{.active = 0}};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); }, "active at least 1");
  options.profile =
      ProfileOptions{.activities = std::vector{ProfilerActivity::cuda}};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); }, "valid activities: \"cpu\"");
}

TEST(OptionsWithoutEffect, OfOneModelAreReportedAsWell) {
  std::string warnings;
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1, .device = at::kCPU};
  options.world.logger = Logger(
      [&](const LogRecord& record) { warnings += std::string(record.message); },
      LogLevel::warning);
  const Accelerator accelerator(options);
  EXPECT_THAT(warnings, IsEmpty());
  torch::nn::Linear net(1, 1);
  const auto model = accelerator.prepare(with_options(
      net,
      {.replicate_options =
           ReplicateOptions{.power_sgd = {.warm_start = false}}}));
  accelerator.finish();
  EXPECT_THAT(warnings, HasSubstr("replicate_options.power_sgd"));
}

}  // namespace ignored_options_test
}  // namespace accelerate
