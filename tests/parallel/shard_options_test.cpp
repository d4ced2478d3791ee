#include "parallel/shard_options.h"

#include <array>

#include <accelerate/error.h>

#include "parallel/plan.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace {

using testing::expect_error;
using Variables = std::map<std::string, std::string, std::less<>>;

ParallelPlan plan(
    const ParallelOptions& options,
    int ranks,
    int local_ranks = 1,
    const Variables& variables = {},
    const std::string& precision = "no") {
  const Environment environment(variables);
  const std::array sources{source_from_environment(environment)};
  return make_plan(
      {.parallel = options,
       .mixed_precision = precision,
       .num_ranks = ranks,
       .num_local_ranks = local_ranks},
      resolve(sources),
      environment);
}

std::pair<int, int> degrees(const ParallelPlan& found) {
  return {
      found.degrees[static_cast<std::size_t>(Axis::replicate)],
      found.degrees[static_cast<std::size_t>(Axis::shard)]};
}

ParallelOptions with(const FullyShardedDataParallelOptions& options) {
  return {.fully_sharded = options};
}

TEST(ShardPlan, TakesAllRanksUnlessToldOtherwise) {
  EXPECT_EQ(degrees(plan({}, 8)), std::pair(8, 1));
  EXPECT_EQ(degrees(plan(with({}), 8)), std::pair(1, 8));
  EXPECT_EQ(
      degrees(plan(
          {.replicate = 2, .fully_sharded = FullyShardedDataParallelOptions()},
          8)),
      std::pair(2, 4));
  EXPECT_EQ(degrees(plan({.shard = 4}, 8)), std::pair(2, 4));
  EXPECT_EQ(
      degrees(plan(
          with({.sharding_strategy = ShardingStrategy::hybrid_shard}), 8, 4)),
      std::pair(2, 4));
  EXPECT_EQ(
      degrees(plan(with({.sharding_strategy = ShardingStrategy::no_shard}), 8)),
      std::pair(8, 1));
}

TEST(ShardPlan, FollowsTheLauncher) {
  const auto found = plan(
      {},
      4,
      1,
      {{"ACCELERATE_USE_FSDP", "true"},
       {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
       {"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
       {"FSDP_MIN_NUM_PARAMS", "100"}});
  EXPECT_EQ(degrees(found), std::pair(1, 4));
  EXPECT_FALSE(found.techniques.shard.frees_after_forward);
  EXPECT_EQ(found.techniques.shard.policy.min_num_params, 100);
  EXPECT_EQ(
      found.techniques.shard.policy.auto_wrap_policy,
      AutoWrapPolicy::size_based_wrap);
}

TEST(ShardPlan, ReadsDeepSpeedsStages) {
  const auto of_stage = [](int stage) {
    return plan({.deepspeed = DeepSpeedOptions{.zero_stage = stage}}, 4);
  };
  EXPECT_EQ(degrees(of_stage(0)), std::pair(4, 1));
  EXPECT_FALSE(of_stage(1).techniques.shard.frees_parameters);
  EXPECT_FALSE(of_stage(1).techniques.shard.reduces_every_backward);
  EXPECT_FALSE(of_stage(2).techniques.shard.frees_parameters);
  EXPECT_TRUE(of_stage(2).techniques.shard.reduces_every_backward);
  EXPECT_TRUE(of_stage(3).techniques.shard.frees_parameters);
  DeepSpeedOptions options;
  options.hf_ds_config =
      R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
          "reduce_bucket_size": "auto"}, "wall_clock_breakdown": true})";
  EXPECT_EQ(
      plan({.deepspeed = options}, 2).ignored,
      (std::vector<std::string>{
          "wall_clock_breakdown", "zero_optimization.overlap_comm"}));
}

TEST(ShardPlan, TakesThePrecisionOfTheProgram) {
  const auto found = plan(with({}), 2, 1, {}, "bf16");
  EXPECT_EQ(found.techniques.shard.param_dtype, at::kBFloat16);
  EXPECT_EQ(found.techniques.shard.reduce_dtype, at::kBFloat16);
  const auto own = plan(
      with(
          {.mixed_precision_policy =
               MixedPrecisionPolicy{
                   .param_dtype = FloatType::bf16,
                   .reduce_dtype = FloatType::fp32}}),
      2,
      1,
      {},
      "no");
  EXPECT_EQ(own.techniques.shard.param_dtype, at::kBFloat16);
  EXPECT_EQ(own.techniques.shard.reduce_dtype, at::kFloat);
}

TEST(ShardPlan, RefusesWhatItCannotDo) {
  const auto refused = [](const ParallelOptions& options,
                          const std::string& why,
                          const Variables& variables = {}) {
    expect_error<ConfigError>([&] { plan(options, 2, 1, variables); }, why);
  };
  refused(
      with({.fsdp_version = 2, .reshard_after_forward = 4}),
      "do not divide the 2");
  refused(
      {.deepspeed = DeepSpeedOptions{.offload_param_device = "nvme"}}, "nvme");
  expect_error<ConfigError>(
      [] {
        const Environment environment;
        make_plan(
            {.parallel = with({.cpu_offload = true}), .device = at::kCUDA},
            resolve({}),
            environment);
      },
      "nothing is split");
  refused(
      {.fully_sharded = FullyShardedDataParallelOptions(),
       .deepspeed = DeepSpeedOptions()},
      "leave one of them out");
  refused(
      {.shard = 2,
       .fully_sharded =
           FullyShardedDataParallelOptions{
               .sharding_strategy = ShardingStrategy::no_shard}},
      "splits nothing");
  refused(
      {},
      "FULL_SHARD",
      {{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_SHARDING_STRATEGY", "FUL"}});
}

}  // namespace
}  // namespace accelerate::detail
