#include "engines/request/read_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace read_request_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::request;
using testing::sources;
using Degrees = std::array<int, kNumAxes>;

// Degrees in the order of Axis.
constexpr Degrees kReplicas{1, 8, 1, 1, 1, 1};

TEST(TrainingRequest, IsEmptyByDefault) {
  const auto found = request({});
  EXPECT_EQ(found.engine, Engine::none);
  EXPECT_FALSE(found.sharding);
  EXPECT_FALSE(found.recomputation);
  EXPECT_THAT(found.complaints, IsEmpty());
}

TEST(TrainingRequest, TakesFSDPsDefaultsForADegreeAlone) {
  const auto found = request({.shard = 4});
  EXPECT_EQ(found.engine, Engine::none);
  ASSERT_TRUE(found.sharding);
  EXPECT_EQ(found.sharding->span, ShardSpan::all);
  EXPECT_TRUE(found.sharding->shard_parameters);
  EXPECT_TRUE(
      request({}, {{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}}).sharding);
}

TEST(TrainingRequest, RefusesTwoEngines) {
  const FullyShardedDataParallelOptions fully_sharded;
  EXPECT_THAT(
      request({.fully_sharded = fully_sharded, .deepspeed = DeepSpeedOptions()})
          .complaints,
      ElementsAre("[parallel] sharding was requested in FSDP's settings and in "
                  "DeepSpeed's; leave one of them out"));
  EXPECT_THAT(
      request(
          {.deepspeed = DeepSpeedOptions()},
          {{"ACCELERATE_USE_MEGATRON_LM", "true"}})
          .complaints,
      ElementsAre(HasSubstr("in DeepSpeed's settings and in Megatron-LM's")));
  EXPECT_FALSE(
      request({.fully_sharded = fully_sharded, .deepspeed = DeepSpeedOptions()})
          .sharding);
}

TEST(TrainingRequest, CollectsAllComplaints) {
  EXPECT_THAT(
      request({.deepspeed = DeepSpeedOptions{.offload_param_device = "nvme"},
               .parallelism_config = ParallelismConfig{.sp_size = 0}})
          .complaints,
      ElementsAre(HasSubstr("sp_size"), HasSubstr("nvme")));
}

TEST(TrainingRequest, PrefersActivationCheckpointingOptions) {
  const auto found = request(
      {.fully_sharded =
           FullyShardedDataParallelOptions{.activation_checkpointing = true},
       .activation_checkpointing = ActivationCheckpointingOptions{
           .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
           .transformer_cls_names_to_wrap = {"Block"},
           .options = {
               .offload_inputs = true, .compare = CompareRecomputed::never}}});
  EXPECT_EQ(
      found.recomputation->options,
      (CheckpointOptions{
          .offload_inputs = true, .compare = CompareRecomputed::never}));
  EXPECT_EQ(
      found.recomputation->modules.policy,
      (WrapPolicy{
          .kind = WrapPolicy::Kind::classes, .class_names = {"Block"}}));
  EXPECT_EQ(found.sharding->units.policy, WrapPolicy());
}

TEST(ModelRequest, TakesTheDegreesOfTheOthers) {
  const auto found =
      read_model_request(ModelOptions(), sources({}), {1, 2, 4, 1, 1, 1});
  EXPECT_EQ(found.degree(Axis::replicate), 2);
  EXPECT_EQ(found.degree(Axis::shard), 4);
}

TEST(ModelRequest, ComputesTheDegreeThatIsLeftUnset) {
  const auto shards = [](int degree) {
    return read_model_request(
        ModelOptions{.shard = degree}, sources({}), kReplicas);
  };
  EXPECT_EQ(shards(4).degree(Axis::replicate), 2);
  EXPECT_FALSE(shards(3).degree(Axis::replicate));
}

TEST(ModelRequest, ShardsAsItsOwnOptionsSay) {
  const auto shards = [](ShardingStrategy strategy, const Degrees& degrees) {
    RequestSources given = sources({.deepspeed = DeepSpeedOptions()});
    given.num_local_ranks = 2;
    return read_model_request(
        ModelOptions{
            .fully_sharded =
                FullyShardedDataParallelOptions{.sharding_strategy = strategy}},
        given,
        degrees);
  };
  using enum ShardingStrategy;
  EXPECT_EQ(shards(full_shard, kReplicas).degree(Axis::shard), 8);
  EXPECT_EQ(shards(full_shard, {1, 2, 4, 1, 1, 1}).degree(Axis::shard), 4);
  EXPECT_EQ(shards(hybrid_shard, kReplicas).degree(Axis::shard), 2);
  EXPECT_EQ(shards(hybrid_shard, kReplicas).degree(Axis::replicate), 4);
  EXPECT_EQ(shards(no_shard, {1, 2, 4, 1, 1, 1}).degree(Axis::replicate), 8);
  EXPECT_EQ(shards(full_shard, kReplicas).engine, Engine::fully_sharded);
  EXPECT_THAT(shards(full_shard, kReplicas).complaints, IsEmpty());
}

}  // namespace read_request_test
}  // namespace accelerate::detail
