#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "comm/group/group_impl.h"
#include "config/settings.h"
#include "support/run_on_ranks.h"
#include "train/settings/settings_report.h"

namespace accelerate {
namespace settings_report_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_on_ranks;

// Environment variables that are set while this object lives.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<const char*, const char*>> values)
      : values_(values.begin(), values.end()) {
    for (const auto& [name, value] : values_)
      setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> values_;
};

// Collects warnings.
class Warnings {
 public:
  [[nodiscard]] Logger logger() {
    return Logger(
        [this](const LogRecord& record) {
          const std::lock_guard lock(mutex_);
          lines_.push_back(std::string(record.message));
        },
        LogLevel::warning);
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

WorldOptions one_rank(Warnings& warnings) {
  return {
      .rank = 0, .size = 1, .device = at::kCPU, .logger = warnings.logger()};
}

// Trains one step of a small model.
void step(const Accelerator& accelerator) {
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(torch::ones({1, 1})).sum());
  optimizer.step();
}

const std::string kPrefix = "settings that have no effect in this program: ";

TEST(SettingsReport, NamesWhatNobodyReadWhenTheFirstStepBegins) {
  const Variables variables(
      {{"FSDP_VERSION", "2"},
       {"MEGATRON_LM_NUM_MICRO_BATCHES", "4"},
       {"ACCELERATE_DYNAMO_BACKEND", "inductor"},
       {"ACCELERATE_FP8_MARGIN", "1"},
       {"ACCELERATE_CPU_AFFINITY", "1"},
       {"OMP_NUM_THREADS", "1"},
       {"ACCELERATE_USE_CPU", "true"},
       {"ACCELERATE_MIXED_PRECISION", "bf16"},
       {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1"}});
  Warnings warnings;
  WorldOptions world = one_rank(warnings);
  world.device.reset();
  const Accelerator accelerator({.world = world});
  EXPECT_THAT(warnings.lines(), IsEmpty());
  step(accelerator);
  const auto expected = ElementsAre(
      kPrefix +
      "enable_cpu_affinity (environment variable ACCELERATE_CPU_AFFINITY), "
      "fsdp_version (environment variable FSDP_VERSION), "
      "megatron_lm_num_micro_batches (environment variable "
      "MEGATRON_LM_NUM_MICRO_BATCHES), "
      "dynamo_backend (environment variable ACCELERATE_DYNAMO_BACKEND), "
      "fp8_margin (environment variable ACCELERATE_FP8_MARGIN)");
  EXPECT_THAT(warnings.lines(), expected);
  accelerator.free_memory();
  step(accelerator);
  accelerator.finish();
  EXPECT_THAT(warnings.lines(), expected);
}

TEST(SettingsReport, ComesAtTheEndOfARunWithoutSteps) {
  const Variables variables({{"FSDP_VERSION", "2"}});
  Warnings warnings;
  const Accelerator accelerator({.world = one_rank(warnings)});
  accelerator.end_training();
  EXPECT_THAT(
      warnings.lines(),
      ElementsAre(
          kPrefix + "fsdp_version (environment variable FSDP_VERSION)"));
}

// This program neither steps nor calls finish().
TEST(SettingsReport, ComesWhenTheLastHandleOfARunWithoutStepsEnds) {
  const Variables variables({{"FSDP_VERSION", "2"}});
  const auto expected =
      ElementsAre(kPrefix + "fsdp_version (environment variable FSDP_VERSION)");
  Warnings warnings;
  {
    std::optional<Accelerator> accelerator(
        AcceleratorOptions{.world = one_rank(warnings)});
    torch::nn::Linear net(1, 1);
    const auto model = accelerator->prepare(net);
    accelerator.reset();
    EXPECT_THAT(warnings.lines(), IsEmpty());
  }
  EXPECT_THAT(warnings.lines(), expected);
  {
    const Accelerator accelerator({.world = one_rank(warnings)});
    accelerator.finish();
  }
  EXPECT_EQ(warnings.lines().size(), 2u);
}

TEST(SettingsReport, SurvivesALoggerThatThrowsAtTheEnd) {
  const Variables variables({{"FSDP_VERSION", "2"}});
  int num_warnings = 0;
  {
    const Accelerator accelerator(
        {.world = {
             .rank = 0,
             .size = 1,
             .logger = Logger(
                 [&](const LogRecord&) {
                   ++num_warnings;
                   throw std::runtime_error("the disk is full");
                 },
                 LogLevel::warning)}});
  }
  EXPECT_EQ(num_warnings, 1);
}

TEST(SettingsReport, ComesWhenTheFirstStepOfLomoBegins) {
  const Variables variables({{"FSDP_VERSION", "2"}});
  Warnings warnings;
  const Accelerator accelerator({.world = one_rank(warnings)});
  torch::nn::Linear net(1, 1);
  optim::Lomo lomo(net->parameters());
  const auto [model, optimizer] = accelerator.prepare(net, lomo);
  EXPECT_THAT(warnings.lines(), IsEmpty());
  accelerator.lomo_backward(model(torch::ones({1, 1})).sum(), 0.1);
  EXPECT_THAT(
      warnings.lines(),
      ElementsAre(
          kPrefix + "fsdp_version (environment variable FSDP_VERSION)"));
}

TEST(SettingsReport, HidesNoKeyThatEndsWithTheNameOfAnother) {
  const std::string file = "file run.yaml";
  const std::vector<detail::IgnoredSetting> ignored{
      {"seq_length", {}, file, "megatron_lm_seq_length"},
      {"dynamo_mode", {}, file}};
  EXPECT_TRUE(detail::is_named(ignored, {"megatron_lm_seq_length", file}));
  EXPECT_TRUE(detail::is_named(ignored, {"dynamo_mode", file}));
  EXPECT_FALSE(
      detail::is_named(ignored, {"parallelism_config_sp_seq_length", file}));
  EXPECT_FALSE(detail::is_named(ignored, {"seq_length", file}));
  EXPECT_FALSE(
      detail::is_named(ignored, {"dynamo_mode", "environment variable X"}));
}

TEST(SettingsReport, NamesAnEnginesSettingsOnceAndWhatToUse) {
  const Variables variables(
      {{"ACCELERATE_USE_MEGATRON_LM", "true"},
       {"MEGATRON_LM_NUM_MICRO_BATCHES", "4"},
       {"MEGATRON_LM_GRADIENT_CLIPPING", "0.5"}});
  Warnings warnings;
  const Accelerator accelerator({.world = one_rank(warnings)});
  step(accelerator);
  EXPECT_THAT(
      warnings.lines(),
      ElementsAre(
          kPrefix +
          "num_micro_batches (environment variable "
          "MEGATRON_LM_NUM_MICRO_BATCHES; use gradient_accumulation_steps)"));
}

// Settings that a launcher read from a file and hands over.
TEST(SettingsReport, NamesSettingsOfAFileOnceUnderWhicheverName) {
  const Variables variables(
      {{"ACCELERATE_CPP_CONFIG",
        R"({"use_deepspeed": true, "fp8_backend": "msamp",
            "deepspeed_moe_layer_cls_names": "Moe", "zero3_save_16bit_model": true,
            "origins": {"use_deepspeed": "file run.yaml",
                        "fp8_backend": "file run.yaml",
                        "deepspeed_moe_layer_cls_names": "file run.yaml",
                        "zero3_save_16bit_model": "file run.yaml"}})"}});
  Warnings warnings;
  const Accelerator accelerator({.world = one_rank(warnings)});
  step(accelerator);
  EXPECT_THAT(
      warnings.lines(),
      ElementsAre(
          kPrefix +
          "zero3_save_16bit_model (file run.yaml; get_state_dict and "
          "save_model always use full weights), "
          "transformer_moe_cls_names (file run.yaml; only zero_stage 3 "
          "gathers layers), "
          "enable_msamp (file run.yaml)"));
}

TEST(SettingsReport, NamesWhatCodeGaveForNothing) {
  Warnings warnings;
  const Accelerator accelerator(
      {.parallel = {.megatron_lm = MegatronLMOptions{.train_iters = 9}},
       .world = one_rank(warnings)});
  step(accelerator);
  EXPECT_THAT(
      warnings.lines(),
      ElementsAre(
          kPrefix +
          "train_iters (code; make the schedule with "
          "scheduler_from_megatron_lm())"));
}

TEST(SettingsReport, IsEmptyWhereEverythingActs) {
  const Variables variables(
      {{"ACCELERATE_USE_FSDP", "true"},
       {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
       {"FSDP_OFFLOAD_PARAMS", "false"},
       {"ACCELERATE_TIMEOUT_SECONDS", "60"},
       {"ACCELERATE_DEBUG_MODE", "true"},
       {"ACCELERATE_LOG_LEVEL", "warning"},
       {"ACCELERATE_TORCH_DEVICE", "cpu"},
       {"ACCELERATE_USE_CPU", "true"}});
  Warnings warnings;
  // The program's own logger and timeout replace the launcher's.
  WorldOptions world = one_rank(warnings);
  world.timeout = std::chrono::seconds(30);
  const Accelerator accelerator({.world = world});
  step(accelerator);
  EXPECT_THAT(warnings.lines(), IsEmpty());
}

TEST(SettingsReport, IsMadeByTheMainProcess) {
  const Variables variables({{"FSDP_VERSION", "2"}});
  Warnings warnings;
  run_on_ranks(2, [&](WorldOptions world) {
    world.logger = warnings.logger();
    const Accelerator accelerator({.world = world});
    step(accelerator);
    accelerator.finish();
  });
  EXPECT_EQ(warnings.lines().size(), 1u);
}

// The marks on the option page say what a World or an Accelerator reads.
TEST(OptionMarks, OfTrainingSayWhatIsRead) {
  const Variables variables(
      {{"ACCELERATE_USE_CPU", "true"},
       {"ACCELERATE_TORCH_DEVICE", "cpu"},
       {"ACCELERATE_MIXED_PRECISION", "bf16"},
       {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"},
       {"ACCELERATE_TIMEOUT_SECONDS", "60"},
       {"ACCELERATE_TRANSPORT", "automatic"},
       {"ACCELERATE_DEBUG_MODE", "true"},
       {"ACCELERATE_CPP_HANG_SECONDS", "20"},
       {"ACCELERATE_CPP_ON_HANG", "warn"},
       {"ACCELERATE_LOG_LEVEL", "error"},
       {"ACCELERATE_CPP_LOG", "data=error"},
       {"ACCELERATE_CPP_LOG_FORMAT", "text"},
       {"ACCELERATE_RUN_NAME", "run"}});
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  const detail::Settings& settings =
      accelerator.world().group().impl()->world->settings;
  for (const detail::OptionSpec& spec : detail::option_table()) {
    if (spec.group != "Training" || spec.use != detail::OptionUse::acts)
      continue;
    // Read where there are devices: DeviceOfARank.IsSharedOnlyOnRequest.
    if (spec.key == "share_devices") continue;
    EXPECT_TRUE(settings.is_given(spec.key)) << spec.key;
    EXPECT_TRUE(settings.was_read(spec.key)) << spec.key;
  }
}

TEST(ExplainSettings, PrintsWhatIsInForce) {
  const Variables variables({{"ACCELERATE_USE_FSDP", "true"}});
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::bf16, .world = world});
    EXPECT_THAT(
        accelerator.explain_settings(),
        AllOf(
            HasSubstr("mixed_precision = bf16  (code)\n"),
            HasSubstr("parallelism_config_dp_shard_size = 2  (from the number "
                      "of ranks)\n"),
            HasSubstr("parallelism_config_dp_replicate_size = 1  (from the "
                      "number of ranks)\n"),
            HasSubstr("use_fsdp = true  (environment variable "
                      "ACCELERATE_USE_FSDP)\n"),
            HasSubstr("fsdp_cpu_ram_efficient_loading = false  (default)\n")));
    EXPECT_THAT(
        accelerator.explain_settings(),
        AllOf(Not(HasSubstr("num_processes")), Not(HasSubstr("zero_stage"))));
  });
}

}  // namespace settings_report_test
}  // namespace accelerate
