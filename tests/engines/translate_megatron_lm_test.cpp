#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/megatron_lm.h"
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

TEST(MegatronRequest, ListsItsOwnLoopAndSchedule) {
  const auto found =
      of({.seq_length = 128,
          .train_iters = 10,
          .lr_decay_style = "cosine",
          .consumed_samples = std::vector<std::int64_t>{5},
          .other_megatron_args = R"({"log_interval": 1})"});
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre(
          "seq_length",
          "train_iters",
          "lr_decay_style (use a schedule of schedulers.h)",
          "consumed_samples (use save_state and load_state)",
          "other_megatron_args"));
  EXPECT_THAT(found.complaints, IsEmpty());
  EXPECT_THAT(of({}).ignored, IsEmpty());
}

TEST(MegatronRequest, FillsInWhatItDoesNotUse) {
  const auto resolved = [](const MegatronLMOptions& options) {
    return resolve_megatron_lm(options, testing::sources({}).settings);
  };
  const auto found = resolved({});
  EXPECT_EQ(found.lr_decay_style, "linear");
  EXPECT_EQ(found.eval_iters, 100);
  EXPECT_EQ(found.is_train_batch_min, true);
  EXPECT_FALSE(found.consumed_samples);
  EXPECT_FALSE(found.train_iters);
  EXPECT_THAT(
      *resolved({.consumed_samples = std::vector<std::int64_t>{1, 2}})
           .consumed_samples,
      ElementsAre(1, 2, 0));
  EXPECT_THAT(
      *resolved({.consumed_samples = std::vector<std::int64_t>{}})
           .consumed_samples,
      IsEmpty());
}

TEST(MegatronRequest, RefusesWhatMegatronWouldNotUnderstand) {
  const auto found =
      of({.seq_length = 0,
          .lr_decay_style = "steep",
          .lr_warmup_fraction = 1.5,
          .consumed_samples = std::vector<std::int64_t>{1, 2, 3, 4},
          .other_megatron_args = "[1]"});
  ASSERT_EQ(found.complaints.size(), 1u);
  for (const char* const phrase :
       {"seq_length is 0",
        "lr_decay_style is \"steep\"",
        "lr_warmup_fraction is 1.5",
        "consumed_samples has 4 entries",
        "other_megatron_args is \"[1]\""}) {
    EXPECT_THAT(found.complaints[0], HasSubstr(phrase));
  }
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
