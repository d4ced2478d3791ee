#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace translate_fully_sharded_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::request;

ShardingRequest sharding(const FullyShardedDataParallelOptions& options) {
  return *request({.fully_sharded = options}).sharding;
}

TEST(FullyShardedRequest, ReadsStrategies) {
  using enum ShardingStrategy;
  const auto of = [](ShardingStrategy strategy) {
    return sharding({.sharding_strategy = strategy});
  };
  EXPECT_EQ(of(full_shard).span, ShardSpan::all);
  EXPECT_TRUE(of(full_shard).reshard_after_forward);
  EXPECT_FALSE(of(shard_grad_op).reshard_after_forward);
  EXPECT_EQ(of(no_shard).span, ShardSpan::none);
  EXPECT_EQ(of(hybrid_shard).span, ShardSpan::node);
  EXPECT_TRUE(of(hybrid_shard).reshard_after_forward);
  EXPECT_FALSE(of(hybrid_shard_zero2).reshard_after_forward);
}

TEST(FullyShardedRequest, ReadsReshardAfterForward) {
  EXPECT_FALSE(sharding({.fsdp_version = 2, .reshard_after_forward = false})
                   .reshard_after_forward);
  const auto group = sharding({.fsdp_version = 2, .reshard_after_forward = 4});
  EXPECT_TRUE(group.reshard_after_forward);
  EXPECT_EQ(group.reshard_group_size, 4);
}

TEST(FullyShardedRequest, ReadsTheFieldOfItsVersion) {
  const auto found = sharding(
      {.fsdp_version = 2,
       .sharding_strategy = ShardingStrategy::no_shard,
       .reshard_after_forward = false});
  EXPECT_EQ(found.span, ShardSpan::all);
  EXPECT_FALSE(found.reshard_after_forward);
  EXPECT_TRUE(
      sharding({.reshard_after_forward = ShardingStrategy::shard_grad_op})
          .reshard_after_forward);
}

TEST(FullyShardedRequest, PrefetchesUnlessToldOtherwise) {
  using enum BackwardPrefetch;
  const auto expect = [](const ShardingRequest& found,
                         bool forward,
                         bool backward,
                         bool after_gradients) {
    EXPECT_EQ(found.prefetch_forward, forward);
    EXPECT_EQ(found.prefetch_backward, backward);
    EXPECT_EQ(found.prefetch_after_gradients, after_gradients);
  };
  expect(sharding({}), true, true, false);
  expect(sharding({.forward_prefetch = false}), false, true, false);
  expect(sharding({.backward_prefetch = none}), true, false, false);
  expect(sharding({.backward_prefetch = backward_post}), true, true, true);
  const auto launched =
      [](const testing::Variables& variables,
         const FullyShardedDataParallelOptions& options = {}) {
        return *request({.fully_sharded = options}, variables).sharding;
      };
  expect(launched({{"FSDP_FORWARD_PREFETCH", "false"}}), false, true, false);
  expect(
      launched({{"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"}}),
      true,
      false,
      false);
  expect(
      launched({{"FSDP_BACKWARD_PREFETCH", "BACKWARD_POST"}}),
      true,
      true,
      true);
  // Code takes precedence.
  expect(
      launched(
          {{"FSDP_FORWARD_PREFETCH", "false"},
           {"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"}},
          {.backward_prefetch = backward_pre, .forward_prefetch = true}),
      true,
      true,
      false);
}

TEST(FullyShardedRequest, PrefetchesAlwaysInVersion2) {
  const auto found = request(
      {.fully_sharded =
           FullyShardedDataParallelOptions{
               .fsdp_version = 2, .backward_prefetch = BackwardPrefetch::none}},
      {{"FSDP_FORWARD_PREFETCH", "false"}});
  EXPECT_TRUE(found.sharding->prefetch_forward);
  EXPECT_TRUE(found.sharding->prefetch_backward);
  EXPECT_THAT(names_of(found.ignored), ElementsAre("backward_prefetch"));
  EXPECT_EQ(found.fsdp_version, 2);
}

TEST(FullyShardedRequest, ReadsPolicies) {
  EXPECT_EQ(sharding({}).units.policy, WrapPolicy());
  EXPECT_EQ(
      sharding({.auto_wrap_policy = AutoWrapPolicy::no_wrap}).units.policy.kind,
      WrapPolicy::Kind::none);
  FullyShardedDataParallelOptions by_size{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 100};
  EXPECT_EQ(
      sharding(by_size).units.policy,
      (WrapPolicy{.kind = WrapPolicy::Kind::remainder, .min_num_params = 100}));
  by_size.fsdp_version = 2;
  EXPECT_EQ(sharding(by_size).units.policy.kind, WrapPolicy::Kind::size);
}

TEST(FullyShardedRequest, RecomputesItsUnits) {
  const auto found = request(
      {.fully_sharded = FullyShardedDataParallelOptions{
           .fsdp_version = 2,
           .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
           .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"},
           .activation_checkpointing = true,
           .activation_checkpointing_offload = true}});
  ASSERT_TRUE(found.recomputation);
  EXPECT_EQ(found.recomputation->modules.policy, found.sharding->units.policy);
  EXPECT_THAT(
      found.recomputation->modules.policy.class_names, ElementsAre("Block"));
  EXPECT_TRUE(found.recomputation->options.offload_inputs);
}

TEST(FullyShardedRequest, LeavesOutputsToAutocastUnlessAPolicyIsGiven) {
  const auto found =
      request({.fully_sharded = FullyShardedDataParallelOptions()}, {}, "bf16");
  EXPECT_EQ(
      found.precision.sharded,
      (MixedPrecisionPolicy{
          .param_dtype = FloatType::bf16, .reduce_dtype = FloatType::bf16}));
  const auto own = request(
      {.fully_sharded = FullyShardedDataParallelOptions{
           .mixed_precision_policy = MixedPrecisionPolicy{
               .param_dtype = FloatType::fp16,
               .buffer_dtype = FloatType::fp32}}});
  EXPECT_EQ(own.precision.sharded.reduce_dtype, FloatType::fp16);
  EXPECT_EQ(own.precision.sharded.buffer_dtype, FloatType::fp32);
}

TEST(FullyShardedRequest, ReadsWhichInputsAreCast) {
  const auto of = [](int version, const MixedPrecisionPolicy& policy) {
    return request(
        {.fully_sharded = FullyShardedDataParallelOptions{
             .fsdp_version = version, .mixed_precision_policy = policy}});
  };
  const auto casts = [&](int version, const MixedPrecisionPolicy& policy) {
    return of(version, policy).precision.sharded.cast_root_forward_inputs;
  };
  EXPECT_EQ(casts(1, {}), true);
  EXPECT_EQ(casts(2, {}), true);
  EXPECT_EQ(casts(1, {.cast_root_forward_inputs = false}), false);
  EXPECT_EQ(casts(1, {.cast_forward_inputs = false}), true);
  EXPECT_EQ(casts(2, {.cast_forward_inputs = false}), false);
  EXPECT_THAT(
      names_of(of(1, {.cast_forward_inputs = true}).ignored),
      ElementsAre("mixed_precision_policy.cast_forward_inputs"));
  EXPECT_THAT(
      names_of(of(2, {.cast_root_forward_inputs = true}).ignored),
      ElementsAre("mixed_precision_policy.cast_root_forward_inputs (use "
                  "cast_forward_inputs)"));
  EXPECT_THAT(of(1, {.cast_root_forward_inputs = true}).ignored, IsEmpty());
}

TEST(FullyShardedRequest, KeepsShardsInFiles) {
  const auto of = [](const FullyShardedDataParallelOptions& options) {
    return request({.fully_sharded = options});
  };
  const DiskRequest expected{
      .keeps_optimizer_state = true,
      .keeps_parameters = true,
      .directory = "/nvme"};
  const auto found = of({.cpu_offload = true, .offload_directory = "/nvme"});
  EXPECT_EQ(found.sharding->disk, expected);
  EXPECT_TRUE(found.sharding->cpu_offload);
  EXPECT_EQ(
      request(
          {},
          {{"ACCELERATE_USE_FSDP", "1"},
           {"FSDP_OFFLOAD_PARAMS", "true"},
           {"ACCELERATE_CPP_FSDP_OFFLOAD_DIRECTORY", "/nvme"}})
          .sharding->disk,
      expected);
  EXPECT_TRUE(of({.cpu_offload = true,
                  .offload_directory = "/nvme",
                  .offload_directory_in_memory = true})
                  .sharding->disk->may_be_in_memory);
  EXPECT_TRUE(of({.cpu_offload = true,
                  .offload_directory = "/nvme",
                  .step_in_backward = true})
                  .sharding->disk->steps_in_backward);
  EXPECT_FALSE(of({.cpu_offload = true}).sharding->disk);
  EXPECT_FALSE(
      of({.cpu_offload = true, .offload_directory = ""}).sharding->disk);
}

TEST(FullyShardedRequest, RefusesFilesOfShardsThatAreNotOffloaded) {
  const auto complaints = [](const FullyShardedDataParallelOptions& options) {
    return request({.fully_sharded = options}).complaints;
  };
  EXPECT_THAT(
      complaints({.offload_directory = "/nvme"}),
      ElementsAre(
          "[config] cpu_offload (fsdp_offload_params) must be true where "
          "offload_directory is given, but is false"));
  EXPECT_THAT(
      complaints(
          {.sharding_strategy = ShardingStrategy::no_shard,
           .cpu_offload = true,
           .offload_directory = "/nvme"}),
      ElementsAre(
          "[config] sharding_strategy must shard where offload_directory is "
          "given, but is NO_SHARD"));
  EXPECT_THAT(
      names_of(request({.fully_sharded =
                            FullyShardedDataParallelOptions{
                                .offload_directory_in_memory = true}})
                   .ignored),
      ElementsAre("offload_directory_in_memory (there is no "
                  "offload_directory)"));
  EXPECT_THAT(
      names_of(request({.fully_sharded =
                            FullyShardedDataParallelOptions{
                                .step_in_backward = true}})
                   .ignored),
      ElementsAre("step_in_backward (there is no offload_directory)"));
}

TEST(FullyShardedRequest, ReportsWhatTheLauncherMisspells) {
  const auto found = request(
      {}, {{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_SHARDING_STRATEGY", "FUL"}});
  EXPECT_THAT(found.complaints, ElementsAre(HasSubstr("FULL_SHARD")));
  EXPECT_FALSE(found.sharding);
}

}  // namespace translate_fully_sharded_test
}  // namespace accelerate::detail
