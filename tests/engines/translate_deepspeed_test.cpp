#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace translate_deepspeed_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::request;

TrainingRequest of_json(const std::string& json) {
  DeepSpeedOptions options;
  options.hf_ds_config = json;
  return request({.deepspeed = options});
}

TEST(DeepSpeedRequest, ReadsStages) {
  const auto of = [](int stage) {
    return *request({.deepspeed = DeepSpeedOptions{.zero_stage = stage}})
                .sharding;
  };
  EXPECT_EQ(of(0).span, ShardSpan::none);
  EXPECT_EQ(of(1).span, ShardSpan::all);
  EXPECT_FALSE(of(1).reduce_every_backward);
  EXPECT_TRUE(of(2).reduce_every_backward);
  EXPECT_FALSE(of(2).shard_parameters);
  EXPECT_TRUE(of(3).shard_parameters);
  EXPECT_TRUE(of(3).make_on_rank_0);
}

TEST(DeepSpeedRequest, ReadsTheStep) {
  const auto found = of_json(
      R"({"zero_optimization": {"stage": 3}, "gradient_clipping": 0.5,
          "gradient_accumulation_steps": 3})");
  EXPECT_EQ(found.step.gradient_accumulation_steps, 3);
  EXPECT_EQ(found.step.gradient_clipping, 0.5);
  const auto silent = of_json(R"({"zero_optimization": {"stage": 3}})");
  EXPECT_FALSE(silent.step.gradient_accumulation_steps);
  EXPECT_FALSE(silent.step.gradient_clipping);
}

TEST(DeepSpeedRequest, KeepsSections) {
  const auto found = of_json(
      R"({"zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}})");
  EXPECT_EQ(found.optimizer->type, "AdamW");
  EXPECT_EQ(found.optimizer->params, R"({"lr":0.5})");
  EXPECT_FALSE(found.scheduler);
  EXPECT_THAT(found.deepspeed_config, HasSubstr("AdamW"));
}

TEST(DeepSpeedRequest, ListsWhatHasNoCounterpart) {
  const auto found = of_json(
      R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
          "reduce_bucket_size": "auto"}, "wall_clock_breakdown": true})");
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre("wall_clock_breakdown", "zero_optimization.overlap_comm"));
  EXPECT_EQ(found.ignored.front().origin, "code");
}

TEST(DeepSpeedRequest, RefusesDevicesThatThisVersionDoesNotUse) {
  EXPECT_THAT(
      request({.deepspeed = DeepSpeedOptions{.offload_param_device = "nvme"}})
          .complaints,
      ElementsAre(HasSubstr("offloading the parameters to nvme")));
  EXPECT_TRUE(
      request({.deepspeed = DeepSpeedOptions{.offload_param_device = "cpu"}})
          .sharding->cpu_offload);
}

}  // namespace translate_deepspeed_test
}  // namespace accelerate::detail
