#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/megatron_lm/megatron_lm.h"
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
  const auto found = of({.num_micro_batches = 2, .min_lr = 0});
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre(
          "num_micro_batches (use gradient_accumulation_steps)",
          "min_lr (make the schedule with scheduler_from_megatron_lm())"));
  EXPECT_EQ(found.ignored.front().origin, "code");
}

TEST(MegatronRequest, RecomputesWhatItSays) {
  const auto recomputes = [](MegatronLMOptions options) {
    options.recompute_activations = true;
    const TrainingRequest request = of(options);
    EXPECT_THAT(request.complaints, IsEmpty());
    return *request.recomputation;
  };
  const auto layers = recomputes({});
  EXPECT_EQ(layers.modules.policy.kind, WrapPolicy::Kind::containers);
  EXPECT_EQ(layers.modules_together, 1);
  EXPECT_FALSE(layers.num_modules);
  const auto together = recomputes({.recompute_num_layers = 3});
  EXPECT_EQ(together.modules_together, 3);
  EXPECT_FALSE(together.num_modules);
  const auto first =
      recomputes({.recompute_method = "block", .recompute_num_layers = 0});
  EXPECT_EQ(first.modules_together, 1);
  EXPECT_EQ(first.num_modules, 0);
  const auto attention = recomputes({.recompute_granularity = "selective"});
  EXPECT_EQ(attention.modules.policy.kind, WrapPolicy::Kind::attention);
}

TEST(MegatronRequest, ListsHowItWouldRecompute) {
  EXPECT_THAT(
      names_of(
          of({.recompute_granularity = "selective", .recompute_num_layers = 2})
              .ignored),
      ElementsAre(
          "recompute_granularity (it belongs to recompute_activations)",
          "recompute_num_layers (it belongs to recompute_activations)"));
  EXPECT_THAT(
      names_of(of({.recompute_activations = true,
                   .recompute_granularity = "selective",
                   .recompute_method = "block"})
                   .ignored),
      ElementsAre(
          "recompute_method (it belongs to recompute_granularity full)"));
}

TEST(MegatronRequest, DividesThePipeline) {
  const TrainingRequest request =
      of({.pp_degree = 2,
          .num_micro_batches = 4,
          .num_layers_per_virtual_pipeline_stage = 3});
  EXPECT_EQ(request.pipeline.num_micro_batches, 4);
  EXPECT_EQ(request.pipeline.layers_per_chunk, 3);
  EXPECT_FALSE(request.pipeline.layers_of_last_rank);
  EXPECT_THAT(request.ignored, IsEmpty());
  EXPECT_EQ(
      of({.pp_degree = 2, .decoder_last_pipeline_num_layers = 2})
          .pipeline.layers_of_last_rank,
      2);
  EXPECT_THAT(
      names_of(of({.decoder_last_pipeline_num_layers = 2}).ignored),
      ElementsAre(
          "decoder_last_pipeline_num_layers (it belongs to pp_degree)"));
  const TrainingRequest silent = of({.pp_degree = 2});
  EXPECT_FALSE(silent.pipeline.num_micro_batches);
  EXPECT_FALSE(silent.pipeline.layers_per_chunk);
  EXPECT_THAT(
      names_of(of({.num_layers_per_virtual_pipeline_stage = 3}).ignored),
      ElementsAre(
          "num_layers_per_virtual_pipeline_stage (it belongs to pp_degree)"));
}

TEST(MegatronRequest, DividesSequencesOfInferredPlans) {
  const MegatronLMOptions options{.tp_degree = 2, .sequence_parallelism = true};
  EXPECT_TRUE(of(options).divides_sequences);
  EXPECT_THAT(of(options).ignored, IsEmpty());
  EXPECT_FALSE(of({.tp_degree = 2}).divides_sequences);
  const auto alone = of({.sequence_parallelism = true});
  EXPECT_FALSE(alone.divides_sequences);
  EXPECT_THAT(
      names_of(alone.ignored),
      ElementsAre("sequence_parallelism (it belongs to tp_degree)"));
  const auto planned = request(
      {.parallelize_plan = ParallelizePlan{{"up", ColwiseParallel{}}},
       .megatron_lm = options});
  EXPECT_FALSE(planned.divides_sequences);
  EXPECT_THAT(
      names_of(planned.ignored),
      ElementsAre("sequence_parallelism (parallelize_plan names "
                  "SequenceParallel layers)"));
  EXPECT_EQ(planned.ignored.front().origin, "code");
}

TEST(MegatronRequest, KeepsMasterWeightsAndWeighsMicroSteps) {
  EXPECT_FALSE(of({}).precision.master_weights);
  EXPECT_TRUE(
      of({.use_precision_aware_optimizer = true}).precision.master_weights);
  EXPECT_TRUE(of({}).step.weighs_by_items);
  EXPECT_FALSE(of({.calculate_per_token_loss = false}).step.weighs_by_items);
}

TEST(MegatronRequest, TakesOtherArgumentsByName) {
  const TrainingRequest found =
      of({.tp_degree = 1,
          .pp_degree = 2,
          .gradient_clipping = 1,
          .other_megatron_args = R"({
              "tensor_model_parallel_size": 4, "num_micro_batches": 8,
              "clip_grad": 2, "sequence_parallel": true,
              "recompute_activations": true, "recompute_method": "block",
              "use_precision_aware_optimizer": true, "exp_avg_dtype": "fp32",
              "rampup_batch_size": null})"});
  EXPECT_THAT(found.complaints, IsEmpty());
  EXPECT_THAT(found.ignored, IsEmpty());
  EXPECT_EQ(found.degree(Axis::tensor), 4);
  EXPECT_EQ(found.degree(Axis::pipeline), 2);
  EXPECT_EQ(found.pipeline.num_micro_batches, 8);
  EXPECT_EQ(found.step.gradient_clipping, 2.0);
  EXPECT_TRUE(found.divides_sequences);
  EXPECT_EQ(found.recomputation->num_modules, 1);
  EXPECT_TRUE(found.precision.master_weights);
  EXPECT_THAT(
      names_of(of({.other_megatron_args = R"({"exp_avg_dtype": "bf16",
          "lr_wsd_decay_style": "cosine", "seq_length": 9})"})
                   .ignored),
      ElementsAre(
          "other_megatron_args.lr_wsd_decay_style (make the schedule with "
          "scheduler_from_megatron_lm())",
          "other_megatron_args.exp_avg_dtype",
          "other_megatron_args.seq_length"));
}

TEST(MegatronRequest, RefusesOtherArgumentsOfOtherTypes) {
  const auto found = of({.other_megatron_args = R"({
      "pipeline_model_parallel_size": 1.5, "clip_grad": "2",
      "lr_decay_style": 3, "use_custom_fsdp": 1, "tp_degree": 9999999999,
      "recompute_num_layers": -1})"});
  ASSERT_EQ(found.complaints.size(), 1u);
  for (const char* const phrase :
       {"pipeline_model_parallel_size in megatron_lm.other_megatron_args must "
        "be a whole number, but is 1.5",
        "clip_grad in megatron_lm.other_megatron_args must be a number, but "
        "is \"2\"",
        "must be a string, but is 3",
        "must be true or false, but is 1",
        "must be a whole number, but is 9999999999",
        "recompute_num_layers must be at least 1, but is -1"}) {
    EXPECT_THAT(found.complaints[0], HasSubstr(phrase));
  }
}

TEST(MegatronRequest, ListsItsOwnLoopAndSchedule) {
  const auto found =
      of({.train_iters = 10,
          .lr_decay_style = "cosine",
          .other_megatron_args = R"({"log_interval": 1, "seq_length": 128,
              "consumed_samples": [5], "lr_mult": 2})"});
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre(
          "train_iters (make the schedule with scheduler_from_megatron_lm())",
          "lr_decay_style (make the schedule with "
          "scheduler_from_megatron_lm())",
          "other_megatron_args.consumed_samples (use save_state and "
          "load_state)",
          "other_megatron_args.log_interval",
          "other_megatron_args.lr_mult (use parameter groups)",
          "other_megatron_args.seq_length"));
  EXPECT_THAT(found.complaints, IsEmpty());
  EXPECT_THAT(of({}).ignored, IsEmpty());
}

TEST(MegatronRequest, FillsInTheScheduleThatItDoesNotUse) {
  const auto found = resolve_megatron_lm(
      read_megatron_arguments({}), testing::sources({}).settings);
  EXPECT_EQ(found.lr_decay_style, "linear");
  EXPECT_EQ(found.weight_decay_incr_style, "constant");
  EXPECT_EQ(found.min_lr, 0);
  EXPECT_FALSE(found.train_iters);
}

TEST(MegatronRequest, RefusesWhatMegatronWouldNotUnderstand) {
  const auto found =
      of({.gradient_clipping = -1,
          .recompute_granularity = "partial",
          .recompute_method = "random",
          .recompute_num_layers = 0,
          .decoder_last_pipeline_num_layers = -1,
          .train_iters = -1,
          .lr_decay_style = "steep",
          .lr_warmup_fraction = 1.5,
          .other_megatron_args = "[1]"});
  ASSERT_EQ(found.complaints.size(), 1u);
  for (const char* const phrase :
       {"gradient_clipping must be at least 0, but is -1",
        "recompute_granularity is \"partial\"",
        "recompute_method is \"random\"",
        "recompute_num_layers must be at least 1, but is 0",
        "decoder_last_pipeline_num_layers must be at least 0, but is -1",
        "train_iters must be at least 0, but is -1",
        "lr_decay_style is \"steep\"",
        "lr_warmup_fraction must be from 0 to 1, but is 1.5",
        "other_megatron_args must be a JSON object, but is \"[1]\""}) {
    EXPECT_THAT(found.complaints[0], HasSubstr(phrase));
  }
}

TEST(MegatronRequest, ListsWhatTheLauncherGivesUnlessItIsTheDefault) {
  const auto launched = [](const std::string& value) {
    return request(
               {},
               {{"ACCELERATE_USE_MEGATRON_LM", "true"},
                {"MEGATRON_LM_EOD_MASK_LOSS", value}})
        .ignored;
  };
  EXPECT_THAT(launched("false"), IsEmpty());
  const auto found = launched("true");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "eod_mask_loss");
  EXPECT_EQ(found[0].key, "megatron_lm_eod_mask_loss");
  EXPECT_EQ(found[0].origin, "environment variable MEGATRON_LM_EOD_MASK_LOSS");
}

}  // namespace translate_megatron_lm_test
}  // namespace accelerate::detail
