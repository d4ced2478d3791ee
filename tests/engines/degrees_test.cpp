#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace degrees_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::request;

TEST(RequestedDegrees, AreUnsetUnlessGiven) {
  for (const auto& degree : request({}).degrees) EXPECT_FALSE(degree);
}

TEST(RequestedDegrees, ComeFromCodeBeforeTheLauncher) {
  const auto found = request(
      {.shard = 2},
      {{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "4"},
       {"PARALLELISM_CONFIG_TP_SIZE", "3"}});
  EXPECT_EQ(found.degree(Axis::shard), 2);
  EXPECT_EQ(found.degree(Axis::tensor), 3);
  EXPECT_FALSE(found.degree(Axis::replicate));
}

TEST(RequestedDegrees, AreUnsetForAConfigurationOfOnes) {
  const auto found = request({.parallelism_config = ParallelismConfig()});
  EXPECT_FALSE(found.degree(Axis::replicate));
  EXPECT_THAT(found.complaints, ElementsAre());
}

TEST(RequestedDegrees, MustAgreeUnderSeveralNames) {
  EXPECT_THAT(
      request({.shard = 2,
               .parallelism_config = ParallelismConfig{.dp_shard_size = 4}})
          .complaints,
      ElementsAre(HasSubstr(
          "shard is 2, but dp_shard_size is 4; leave one of them out")));
  EXPECT_THAT(
      request({.tensor = 2, .megatron_lm = MegatronLMOptions{.tp_degree = 4}})
          .complaints,
      ElementsAre(HasSubstr("tensor is 2, but tp_degree is 4")));
}

TEST(RequestedDegrees, AreRefusedIfNotSupported) {
  EXPECT_THAT(
      request({}, {{"PARALLELISM_CONFIG_SP_SIZE", "4"}}).complaints,
      ElementsAre(HasSubstr("set sp_size to 1")));
  EXPECT_THAT(
      request(
          {.megatron_lm = MegatronLMOptions{.expert_tensor_parallel_size = 2}})
          .complaints,
      ElementsAre(HasSubstr("set expert_tensor_parallel_size to 1")));
}

}  // namespace degrees_test
}  // namespace accelerate::detail
