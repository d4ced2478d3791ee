#include "parallel/shard/shard_options.h"

#include <array>

#include <accelerate/error.h>

#include "engines/request/read_request.h"
#include "parallel/plan/plan.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace shard_options_test {

using testing::expect_error;
using Variables = std::map<std::string, std::string, std::less<>>;

TrainingRequest request(
    const ParallelOptions& options,
    const Variables& variables = {},
    const std::string& precision = "no",
    int local_ranks = 1) {
  const Environment environment(variables);
  const std::array sources{source_from_environment(environment)};
  return read_training_request(
      {.parallel = options,
       .mixed_precision = precision,
       .num_local_ranks = local_ranks,
       .settings = resolve(sources),
       .environment = environment});
}

ParallelPlan plan(
    const ParallelOptions& options,
    int ranks,
    int local_ranks = 1,
    const Variables& variables = {},
    const std::string& precision = "no") {
  return make_plan(
      {.training = request(options, variables, precision, local_ranks),
       .num_ranks = ranks,
       .num_local_ranks = local_ranks});
}

std::pair<int, int> degrees(const ParallelPlan& found) {
  return {
      found.degrees[static_cast<std::size_t>(Axis::replicate)],
      found.degrees[static_cast<std::size_t>(Axis::shard)]};
}

ParallelOptions with(const FullyShardedDataParallelOptions& options) {
  return {.fully_sharded = options};
}

TEST(ShardPlan, TakesAllRanksUnlessDegreesAreGiven) {
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

// A rank that has all shards takes steps as without sharding.
TEST(ShardPlan, KeepsFreedBlocksOnSeveralRanks) {
  const auto keeps = [](int ranks, std::optional<bool> given) {
    PlanRequest wanted{.training = request(with({}))};
    wanted.num_ranks = ranks;
    wanted.num_local_ranks = 1;
    wanted.keep_freed_blocks = given;
    return make_plan(wanted).keeps_freed_blocks;
  };
  EXPECT_TRUE(keeps(2, std::nullopt));
  EXPECT_FALSE(keeps(1, std::nullopt));
  EXPECT_TRUE(keeps(1, true));
  EXPECT_FALSE(keeps(2, false));
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
  EXPECT_FALSE(found.techniques.shard.reshards_after_forward);
  EXPECT_EQ(
      found.techniques.shard.units.policy,
      (WrapPolicy{.kind = WrapPolicy::Kind::remainder, .min_num_params = 100}));
}

TEST(ShardPlan, ReadsDeepSpeedsStages) {
  const auto of_stage = [](int stage) {
    return plan({.deepspeed = DeepSpeedOptions{.zero_stage = stage}}, 4);
  };
  EXPECT_EQ(degrees(of_stage(0)), std::pair(4, 1));
  EXPECT_FALSE(of_stage(1).techniques.shard.shards_parameters);
  EXPECT_FALSE(of_stage(1).techniques.shard.reduces_every_backward);
  EXPECT_FALSE(of_stage(2).techniques.shard.shards_parameters);
  EXPECT_TRUE(of_stage(2).techniques.shard.reduces_every_backward);
  EXPECT_TRUE(of_stage(3).techniques.shard.shards_parameters);
  DeepSpeedOptions options;
  options.hf_ds_config =
      R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
          "reduce_bucket_size": "auto"}, "wall_clock_breakdown": true})";
  EXPECT_EQ(
      names_of(request({.deepspeed = options}).ignored),
      (std::vector<std::string>{
          "wall_clock_breakdown", "zero_optimization.overlap_comm"}));
}

TEST(ShardPlan, LimitsPrefetching) {
  EXPECT_EQ(plan(with({}), 2).techniques.shard.prefetch_depth, 1u);
  EXPECT_EQ(
      plan(with({.limit_all_gathers = false}), 2)
          .techniques.shard.prefetch_depth,
      2u);
}

TEST(ShardPlan, ChoosesTheRanksThatMakeAndReadValues) {
  const auto efficient = plan(with({.cpu_ram_efficient_loading = true}), 2);
  EXPECT_TRUE(efficient.makes_on_rank_0);
  EXPECT_TRUE(efficient.reads_on_rank_0);
  const auto plan_for = [](DeepSpeedOptions options) {
    return plan({.deepspeed = options}, 2);
  };
  EXPECT_TRUE(plan_for({.zero_stage = 3}).makes_on_rank_0);
  EXPECT_FALSE(plan_for({.zero_stage = 3}).reads_on_rank_0);
  EXPECT_FALSE(plan_for({.zero_stage = 2}).makes_on_rank_0);
  EXPECT_FALSE(
      plan_for({.zero_stage = 3, .zero3_init_flag = false}).makes_on_rank_0);
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
        make_plan(
            {.training = request(with({.cpu_offload = true})),
             .device = at::kCUDA});
      },
      "nothing is sharded");
  refused(
      {.fully_sharded = FullyShardedDataParallelOptions(),
       .deepspeed = DeepSpeedOptions()},
      "leave one of them out");
  refused(
      {.shard = 2,
       .fully_sharded =
           FullyShardedDataParallelOptions{
               .sharding_strategy = ShardingStrategy::no_shard}},
      "shards nothing");
  refused(
      {},
      "FULL_SHARD",
      {{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_SHARDING_STRATEGY", "FUL"}});
}

TEST(ParallelismConfigPlan, TakesAcceleratesDegrees) {
  EXPECT_EQ(
      degrees(plan(
          {.parallelism_config =
               ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 3}},
          6)),
      std::pair(2, 3));
  // A config that does not shard anything replicates over all ranks.
  EXPECT_EQ(
      degrees(plan({.parallelism_config = ParallelismConfig()}, 4)),
      std::pair(4, 1));
  // Fields left unset take the launcher's values.
  EXPECT_EQ(
      degrees(plan(
          {.parallelism_config = ParallelismConfig{.dp_shard_size = 2}},
          4,
          1,
          {{"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2"}})),
      std::pair(2, 2));
  const auto refused = [](const ParallelOptions& options,
                          const std::string& why,
                          const Variables& variables = {}) {
    expect_error<ConfigError>([&] { plan(options, 4, 1, variables); }, why);
  };
  refused(
      {.parallelism_config = ParallelismConfig{.dp_shard_size = 2}},
      "launch 2 processes");
  refused(
      {.shard = 2, .parallelism_config = ParallelismConfig{.dp_shard_size = 4}},
      "shard is 2, but dp_shard_size is 4");
  refused({.parallelism_config = ParallelismConfig{.tp_size = 4}}, "tensor");
  refused({.parallelism_config = ParallelismConfig{.sp_size = 3}}, "context");
  refused({}, "context", {{"PARALLELISM_CONFIG_SP_SIZE", "3"}});
}

TEST(MegatronPlan, FollowsItsOptions) {
  const auto plan_for = [](const MegatronLMOptions& options) {
    return plan({.megatron_lm = options}, 4);
  };
  const auto requested = [](const MegatronLMOptions& options) {
    return request({.megatron_lm = options});
  };
  EXPECT_EQ(degrees(plan_for({.num_micro_batches = 2})), std::pair(4, 1));
  const auto plain = requested({.num_micro_batches = 2});
  EXPECT_EQ(plain.step.gradient_clipping, 1.0);
  EXPECT_EQ(
      names_of(plain.ignored),
      (std::vector<std::string>{
          "num_micro_batches (use gradient_accumulation_steps)"}));
  EXPECT_EQ(
      requested({.gradient_clipping = 0}).step.gradient_clipping, std::nullopt);
  const auto split = plan_for({.use_distributed_optimizer = true});
  EXPECT_EQ(degrees(split), std::pair(1, 4));
  EXPECT_FALSE(split.techniques.shard.shards_parameters);
  EXPECT_FALSE(split.techniques.shard.reduces_every_backward);
  EXPECT_TRUE(
      plan_for({.use_custom_fsdp = true}).techniques.shard.shards_parameters);
  EXPECT_TRUE(plan_for({.recompute_activations = true})
                  .techniques.activation_checkpointing);
  EXPECT_EQ(
      degrees(plan(
          {},
          4,
          1,
          {{"ACCELERATE_USE_MEGATRON_LM", "true"},
           {"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "true"}})),
      std::pair(1, 4));
  const auto refused = [](const ParallelOptions& options,
                          const std::string& why) {
    expect_error<ConfigError>([&] { plan(options, 4); }, why);
  };
  EXPECT_TRUE(plan_for({.tp_degree = 2}).techniques.infers_plan);
  EXPECT_EQ(plan_for({.tp_degree = 2}).degree(Axis::tensor), 2);
  EXPECT_EQ(
      plan_for({.expert_model_parallel_size = 2}).degree(Axis::expert), 2);
  refused(
      {.megatron_lm = MegatronLMOptions{.optimizer_cpu_offload = true}},
      "use_distributed_optimizer");
  refused(
      {.fully_sharded = FullyShardedDataParallelOptions(),
       .megatron_lm = MegatronLMOptions()},
      "in FSDP's settings and in Megatron-LM's");
}

}  // namespace shard_options_test
}  // namespace accelerate::detail
