// What the launcher's variables change in a program, and which variables it
// reports because they change nothing.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "comm/group/group_impl.h"
#include "config/options/option_table.h"
#include "support/expect_error.h"
#include "support/option_samples.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace launcher_settings_test {

using detail::OptionSpec;
using detail::OptionUse;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::run_on_ranks;
using testing::sample_of;
using Variables = std::map<std::string, std::string>;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

// Returns the warnings of a program that only creates an Accelerator.
std::vector<std::string> warnings_of(AcceleratorOptions options) {
  std::vector<std::string> lines;
  options.world = alone();
  options.world.logger = Logger(
      [&](const LogRecord& record) { lines.emplace_back(record.message); },
      LogLevel::warning);
  const Accelerator accelerator(options);
  accelerator.finish();
  return lines;
}

TEST(LauncherSettings, DeviceIsThatOfEveryRank) {
  const WorldOptions one{.rank = 0, .size = 1};
  {
    const auto scope = patch_environment({{"ACCELERATE_TORCH_DEVICE", "meta"}});
    EXPECT_EQ(World(one).device(), at::kMeta);
  }
  const auto scope = patch_environment({{"ACCELERATE_TORCH_DEVICE", "abacus"}});
  expect_error<ConfigError>(
      [&] { const World refused(one); },
      "must be one that this LibTorch has, but is \"abacus\" (environment "
      "variable ACCELERATE_TORCH_DEVICE)");
}

TEST(LauncherSettings, MixedPrecisionIsThatOfForwards) {
  const auto dtype = [](const char* name) {
    const auto scope =
        patch_environment({{"ACCELERATE_MIXED_PRECISION", name}});
    const Accelerator accelerator({.world = alone()});
    torch::nn::Linear net(4, 4);
    auto model = accelerator.prepare(net);
    return model.call([&](torch::nn::LinearImpl& linear) {
      return linear.forward(torch::ones({2, 4})).scalar_type();
    });
  };
  EXPECT_EQ(dtype("no"), at::kFloat);
  EXPECT_EQ(dtype("bf16"), at::kBFloat16);
  EXPECT_EQ(dtype("fp16"), at::kHalf);
  EXPECT_EQ(dtype("fp8"), at::kBFloat16);
}

TEST(LauncherSettings, GradientAccumulationStepsAreTheWindow) {
  const auto scope =
      patch_environment({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"}});
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    net->weight.zero_();
  }
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<double> weights;
  for (const double x : {1.0, 3.0, 5.0, 7.0}) {
    auto micro_step = accelerator.accumulate(model);
    optimizer.zero_grad();
    accelerator.backward(model(torch::full({1, 1}, x)).sum());
    optimizer.step();
    weights.push_back(net->weight.item<double>());
  }
  EXPECT_THAT(weights, ElementsAre(0, -2, -2, -8));
}

TEST(LauncherSettings, TimeoutSecondsAreThoseOfTheWorld) {
  const WorldOptions one{.rank = 0, .size = 1};
  const auto usual = World(one).timeout();
  const auto scope =
      patch_environment({{"ACCELERATE_TIMEOUT_SECONDS", "0.25"}});
  EXPECT_EQ(World(one).timeout(), std::chrono::milliseconds(250));
  EXPECT_GT(usual, std::chrono::seconds(1));
}

TEST(LauncherSettings, TransportConnectsTheRanks) {
  const auto connected_by = [](const char* name) {
    const auto scope = patch_environment({{"ACCELERATE_TRANSPORT", name}});
    std::string found;
    run_on_ranks(2, [&](WorldOptions options) {
      options.transport.reset();
      options.own_transport = nullptr;
      const World world(options);
      if (world.rank() == 0)
        found = world.group().impl()->connection->facts().name;
    });
    return found;
  };
  EXPECT_EQ(connected_by("gloo"), "gloo");
  EXPECT_EQ(connected_by("shared_memory"), "shared_memory");
  EXPECT_EQ(connected_by("automatic"), "shared_memory");
  EXPECT_THROW(connected_by("pigeons"), ConfigError);
}

TEST(LauncherSettings, DebugComparesCollectives) {
  const auto scope = patch_environment({{"ACCELERATE_DEBUG_MODE", "true"}});
  const auto gather_different = [] {
    run_on_ranks(2, [](const WorldOptions& options) {
      const World world(options);
      gather(torch::zeros({2, world.rank() + 1}), world.group());
    });
  };
  expect_error<DistributedError>(gather_different, "[2, 2]");
}

TEST(LauncherSettings, LogLevelHidesMessagesBelowIt) {
  const auto shown = [](const char* level) {
    const auto scope = patch_environment(
        {{"ACCELERATE_LOG_LEVEL", level}, {"FSDP_VERSION", "2"}});
    ::testing::internal::CaptureStderr();
    Accelerator({.world = alone()}).finish();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(shown("warning"), HasSubstr("fsdp_version"));
  EXPECT_EQ(shown("error"), "");
}

// Returns what a logger of the program writes to standard error.
std::string logged_as(const Variables& variables) {
  const auto scope = patch_environment(variables);
  ::testing::internal::CaptureStderr();
  {
    const Accelerator accelerator({.world = alone()});
    accelerator.world().logger("train").info("first");
    accelerator.world().logger("train.data").warning("second {}", 2);
    accelerator.world().logger("train", LogLevel::error).warning("not visible");
    accelerator.finish();
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(LoggerOfTheWorld, WritesAsTheSettingsSay) {
  EXPECT_EQ(logged_as({}), "warning: train.data: [RANK 0] second 2\n");
  EXPECT_EQ(
      logged_as({{"ACCELERATE_CPP_LOG", "train=info,train.data=error"}}),
      "info: train: [RANK 0] first\n");
  EXPECT_THAT(
      logged_as({{"ACCELERATE_CPP_LOG_FORMAT", "json"}}),
      HasSubstr("\"level\":\"warning\",\"name\":\"train.data\",\"rank\":0,"
                "\"message\":\"[RANK 0] second 2\"}\n"));
  expect_error<ConfigError>(
      [] { logged_as({{"ACCELERATE_CPP_LOG", "train"}}); },
      "but one is \"train\"");
}

TEST(LoggerOfTheWorld, LogsInTheOrderOfRanks) {
  std::mutex mutex;
  std::vector<std::string> lines;
  run_on_ranks(3, [&](const WorldOptions& ranks) {
    WorldOptions options = ranks;
    options.logger = Logger(
        [&](const LogRecord& record) {
          const std::lock_guard lock(mutex);
          lines.emplace_back(record.message);
        },
        LogLevel::info);
    const Accelerator accelerator({.world = options});
    const NamedLogger logger = accelerator.world().logger("train");
    logger.info({.in_order = true}, "mine");
    logger.info("once");
  });
  EXPECT_THAT(
      lines,
      ElementsAre(
          "[RANK 0] mine", "[RANK 1] mine", "[RANK 2] mine", "[RANK 0] once"));
}

TEST(LauncherSettings, UseFsdpShardsParameters) {
  const auto scope = patch_environment({{"ACCELERATE_USE_FSDP", "true"}});
  run_on_ranks(2, [](const WorldOptions& options) {
    const Accelerator accelerator({.world = options});
    torch::nn::Linear net(4, 6);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::int64_t elements = 0;
    for (const at::Tensor& shard : sgd.param_groups()[0].params())
      elements += shard.numel();
    EXPECT_EQ(elements, (4 * 6 + 6) / 2);
  });
}

// Degrees that the launcher can give but this version refuses.
struct Refusal {
  std::string variable;
  Variables company;
  std::string error;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.variable;
}

std::vector<Refusal> refusals() {
  const Variables megatron{{"ACCELERATE_USE_MEGATRON_LM", "true"}};
  const std::string too_many =
      "[parallel] pipeline (2) = 2 ranks, but the launcher started 1; set "
      "pipeline to 1 or launch 2 processes";
  const std::string no_plan =
      "[parallel] tensor was asked for, but nothing says which layers are "
      "split; give ParallelOptions::parallelize_plan, or set tensor to 1";
  return {
      {"PARALLELISM_CONFIG_TP_SIZE", {}, no_plan},
      {"PARALLELISM_CONFIG_CP_BACKEND",
       {},
       "is \"2\", but must be one of torch"},
      {"PARALLELISM_CONFIG_SP_BACKEND",
       {},
       "is \"2\", but must be one of deepspeed"},
      {"PARALLELISM_CONFIG_PP_SIZE", {}, too_many},
      {"MEGATRON_LM_PP_DEGREE", megatron, too_many},
      {"MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE",
       megatron,
       "[parallel] expert is 2, but the experts are divided among the ranks "
       "that read different data, replicate (1) x shard (1) = 1; set expert to "
       "a divisor of 1"},
      {"MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE",
       megatron,
       "[parallel] expert_tensor_parallel_size is 2, but tp_degree is 1; "
       "experts are split over all tensor-parallel ranks or over none: set it "
       "to 1"},
  };
}

class RefusedDegree : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedDegree, IsAnErrorThatSaysWhatToDo) {
  Variables variables = GetParam().company;
  variables[GetParam().variable] = "2";
  const auto scope = patch_environment(variables);
  expect_error<ConfigError>(
      [] { const Accelerator refused({.world = alone()}); }, GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    RefusedDegree,
    ::testing::ValuesIn(refusals()),
    [](const ::testing::TestParamInfo<Refusal>& refusal) {
      return refusal.param.variable;
    });

// Options with a variable that have no effect in programs, except those with a
// single choice.
std::vector<std::string> options_without_effect() {
  std::vector<std::string> keys;
  for (const OptionSpec& spec : detail::option_table()) {
    const bool acts =
        spec.use == OptionUse::acts || spec.use == OptionUse::launches;
    if (!acts && !spec.variable.empty() && !sample_of(spec).empty())
      keys.emplace_back(spec.key);
  }
  return keys;
}

class VariableWithoutEffect : public ::testing::TestWithParam<std::string> {};

TEST_P(VariableWithoutEffect, IsReportedWithItsOrigin) {
  const OptionSpec& spec = *detail::find_option(GetParam());
  const std::string variable(spec.variable);
  const std::string report =
      "settings that have no effect in this program: " + GetParam() +
      " (environment variable " + variable + ")";
  {
    const auto scope = patch_environment({{variable, sample_of(spec)}});
    EXPECT_THAT(warnings_of({}), ElementsAre(report));
  }
  EXPECT_THAT(warnings_of({}), ElementsAre());
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    VariableWithoutEffect,
    ::testing::ValuesIn(options_without_effect()),
    [](const ::testing::TestParamInfo<std::string>& key) { return key.param; });

TEST(ProfileOptions, AreNotReported) {
  AcceleratorOptions options;
  options.profile = ProfileOptions{.with_flops = true};
  EXPECT_THAT(warnings_of(options), ElementsAre());
}

// The actions of the first steps, one letter each; S is a step that is recorded
// and saved.
std::string actions(const ProfileSchedule& schedule) {
  std::string letters;
  for (std::int64_t step = 0; step < 10; ++step) {
    switch (profiler_action(schedule, step)) {
      case ProfilerAction::none:
        letters += '-';
        break;
      case ProfilerAction::warmup:
        letters += 'w';
        break;
      case ProfilerAction::record:
        letters += 'r';
        break;
      case ProfilerAction::record_and_save:
        letters += 'S';
        break;
    }
  }
  return letters;
}

TEST(ProfilerAction, FollowsEveryNumberOfTheSchedule) {
  EXPECT_EQ(actions({}), "SSSSSSSSSS");
  EXPECT_EQ(actions({.wait = 2}), "--S--S--S-");
  EXPECT_EQ(actions({.warmup = 1}), "wSwSwSwSwS");
  EXPECT_EQ(actions({.active = 4}), "rrrSrrrSrr");
  EXPECT_EQ(actions({.repeat = 3}), "SSS-------");
  EXPECT_EQ(actions({.skip_first = 4}), "----SSSSSS");
  EXPECT_EQ(
      actions(
          {.wait = 1, .warmup = 1, .active = 2, .repeat = 1, .skip_first = 2}),
      "---wrS----");
  EXPECT_EQ(
      actions(
          {.wait = 3, .active = 2, .skip_first = 1, .skip_first_wait = true}),
      "-rS---rS--");
}

}  // namespace launcher_settings_test
}  // namespace accelerate
