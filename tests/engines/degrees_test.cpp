#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/parallelism.h"
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
      request(
          {.megatron_lm = MegatronLMOptions{.expert_tensor_parallel_size = 2}})
          .complaints,
      ElementsAre(HasSubstr(
          "expert_tensor_parallel_size is 2, but tp_degree is 1; experts are "
          "split over all tensor-parallel ranks or over none: set it to 1")));
}

TEST(RequestedDegrees, DivideExpertsByEitherName) {
  EXPECT_EQ(request({.expert = 4}).degree(Axis::expert), 4);
  EXPECT_EQ(
      request({}, {{"PARALLELISM_CONFIG_EP_SIZE", "2"}}).degree(Axis::expert),
      2);
  const auto found = request(
      {.megatron_lm = MegatronLMOptions{
           .tp_degree = 2,
           .expert_model_parallel_size = 2,
           .expert_tensor_parallel_size = 2}});
  EXPECT_THAT(found.complaints, ElementsAre());
  EXPECT_EQ(found.degree(Axis::expert), 2);
  EXPECT_TRUE(found.experts.splits_over_tensor);
  EXPECT_FALSE(request({.megatron_lm = MegatronLMOptions{.tp_degree = 2}})
                   .experts.splits_over_tensor);
  EXPECT_TRUE(request({.tensor = 2}).experts.splits_over_tensor);
  EXPECT_THAT(
      request(
          {.expert = 4,
           .megatron_lm = MegatronLMOptions{.expert_model_parallel_size = 2}})
          .complaints,
      ElementsAre(
          HasSubstr("expert is 4, but expert_model_parallel_size is 2")));
}

TEST(RequestedDegrees, DivideSequencesByEitherName) {
  const auto context = [](const ParallelOptions& options) {
    return request(options).degree(Axis::context);
  };
  EXPECT_EQ(
      context({.parallelism_config = ParallelismConfig{.cp_size = 2}}), 2);
  EXPECT_EQ(
      context({.parallelism_config = ParallelismConfig{.sp_size = 4}}), 4);
  EXPECT_EQ(
      request({}, {{"PARALLELISM_CONFIG_SP_SIZE", "4"}}).degree(Axis::context),
      4);
  EXPECT_THAT(
      request(
          {.context = 2, .parallelism_config = ParallelismConfig{.sp_size = 4}})
          .complaints,
      ElementsAre(HasSubstr("context is 2, but sp_size is 4")));
}

TEST(ParallelismSettings, AreListedIfTheyDescribeADegreeOfOne) {
  const auto found = request(
      {.parallelism_config = ParallelismConfig{
           .cp_comm_strategy = "alltoall", .sp_seq_length = 8}});
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre(
          "cp_comm_strategy (cp_size is 1)", "sp_seq_length (sp_size is 1)"));
  EXPECT_THAT(found.complaints, ElementsAre());
}

TEST(ParallelismSettings, NameAnAttentionThatAccelerateTakes) {
  const auto complaints = [](const std::string& name) {
    return request(
               {},
               {{"PARALLELISM_CONFIG_SP_SIZE", "2"},
                {"PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", name}})
        .complaints;
  };
  for (const char* const taken :
       {"sdpa",
        "flash_attention_2",
        "flash_attention_3",
        "kernels-community/flash-attn2"}) {
    EXPECT_THAT(complaints(taken), ElementsAre());
  }
  for (const char* const refused :
       {"foobar",
        "eager",
        "flex_attention",
        "kernels-community/other",
        "none"}) {
    EXPECT_THAT(
        complaints(refused),
        ElementsAre(HasSubstr("sp_attn_implementation is \"")));
  }
}

TEST(ParallelismSettings, TakeALengthForSequencesOfOneLengthOnly) {
  const auto length = [](const char* is_variable) {
    return resolve_parallelism(
               {.sp_size = 2},
               testing::sources(
                   {},
                   {{"PARALLELISM_CONFIG_SP_SEQ_LENGTH", "16"},
                    {"PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE",
                     is_variable}})
                   .settings)
        .sp_seq_length;
  };
  EXPECT_EQ(length("false"), 16);
  EXPECT_FALSE(length("true"));
}

}  // namespace degrees_test
}  // namespace accelerate::detail
