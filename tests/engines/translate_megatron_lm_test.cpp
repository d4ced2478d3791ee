#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace translate_megatron_lm_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::request;

TrainingRequest of(const MegatronLMOptions& options) {
  return request({.megatron_lm = options});
}

TEST(MegatronRequest, ReadsSharding) {
  EXPECT_EQ(of({}).sharding->span, ShardSpan::none);
  const auto state = of({.use_distributed_optimizer = true});
  EXPECT_EQ(state.sharding->span, ShardSpan::all);
  EXPECT_FALSE(state.sharding->shard_parameters);
  EXPECT_TRUE(of({.use_custom_fsdp = true}).sharding->shard_parameters);
  EXPECT_TRUE(of({.recompute_activations = true}).recomputation);
  EXPECT_EQ(of({}).step.gradient_clipping, 1.0);
  EXPECT_FALSE(of({.gradient_clipping = 0}).step.gradient_clipping);
}

TEST(MegatronRequest, RefusesOffloadOfStateThatIsNotSharded) {
  EXPECT_THAT(
      of({.optimizer_cpu_offload = true}).complaints,
      ElementsAre(HasSubstr("use_distributed_optimizer")));
}

TEST(MegatronRequest, ListsWhatHasNoCounterpart) {
  const auto found = of({.num_micro_batches = 2, .hidden_dropout = 0});
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre(
          "num_micro_batches (use gradient_accumulation_steps)",
          "hidden_dropout"));
  EXPECT_EQ(found.ignored.front().origin, "code");
}

TEST(MegatronRequest, ListsWhatTheLauncherGivesUnlessItIsTheDefault) {
  const auto launched = [](const std::string& value) {
    return request(
               {},
               {{"ACCELERATE_USE_MEGATRON_LM", "true"},
                {"MEGATRON_LM_SEQUENCE_PARALLELISM", value}})
        .ignored;
  };
  EXPECT_THAT(launched("false"), IsEmpty());
  const auto found = launched("true");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "sequence_parallelism");
  EXPECT_EQ(
      found[0].origin, "environment variable MEGATRON_LM_SEQUENCE_PARALLELISM");
}

}  // namespace translate_megatron_lm_test
}  // namespace accelerate::detail
