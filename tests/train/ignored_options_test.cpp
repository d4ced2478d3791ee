#include "train/ignored_options.h"

#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace ignored_options_test {

using detail::names_of;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names(const AcceleratorOptions& options) {
  return names_of(detail::options_without_effect(options, detail::resolve({})));
}

// What a program with these options logs as warnings.
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
  options.gradient_accumulation.adjust_scheduler = false;
  options.parallel.replicate_options.dim = 1;
  options.parallel.replicate_options.check_reduction = true;
  options.dynamo = TorchDynamoOptions{.backend = "inductor"};
  EXPECT_THAT(
      names(options),
      ElementsAre(
          "replicate_options.dim",
          "replicate_options.check_reduction",
          "gradient_accumulation.adjust_scheduler",
          "dynamo_backend"));
}

TEST(OptionsWithoutEffect, OfFp8AreReportedByTheProgram) {
  EXPECT_THAT(
      warnings_of({.fp8_recipe = AORecipeKwargs()}),
      HasSubstr("fp8_recipe (code; mixed_precision is not fp8)"));
  EXPECT_THAT(
      warnings_of(
          {.mixed_precision = Precision::fp8,
           .fp8_recipe =
               AORecipeKwargs{.enable_fsdp_float8_all_gather = true}}),
      HasSubstr("enable_fsdp_float8_all_gather"));
}

TEST(OptionsWithoutEffect, AreReportedByTheProgram) {
  EXPECT_THAT(
      warnings_of({.gradient_accumulation = {.adjust_scheduler = false}}),
      HasSubstr("do nothing in this program: "
                "gradient_accumulation.adjust_scheduler"));
  EXPECT_THAT(
      warnings_of(
          {.parallel =
               {.deepspeed = DeepSpeedOptions{.is_train_batch_min = false}}}),
      HasSubstr("is_train_batch_min"));
}

TEST(OptionsWithoutEffect, AreCheckedLikeOthers) {
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1};
  options.profile =
      ProfileOptions{.schedule_option = ProfileSchedule{.active = 0}};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); }, "active is at least 1");
  options.profile = ProfileOptions{
      .activities = std::vector{ProfilerActivity::cuda}};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); }, "valid activities: \"cpu\"");
  options.profile.reset();
  options.dynamo = TorchDynamoOptions{.backend = "nonsense"};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); },
      "dynamo_backend is \"nonsense\"");
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
      net, {.replicate_options = ReplicateOptions{.check_reduction = true}}));
  accelerator.finish();
  EXPECT_THAT(warnings, HasSubstr("replicate_options.check_reduction"));
}

}  // namespace ignored_options_test
}  // namespace accelerate
