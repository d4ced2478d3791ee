#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace translate_deepspeed_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

TEST(DeepSpeedRequest, SplitsLayersOverAutotpSizeRanks) {
  const auto split = of_json(
      R"({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}})");
  EXPECT_EQ(split.degree(Axis::tensor), 4);
  EXPECT_TRUE(split.infers_plan);
  EXPECT_THAT(split.ignored, IsEmpty());
  for (const char* const size : {"0", "1", "null"}) {
    const auto whole = of_json(
        std::string(
            R"({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": )") +
        size + "}}");
    EXPECT_EQ(whole.degree(Axis::tensor), std::nullopt) << size;
    EXPECT_FALSE(whole.infers_plan) << size;
  }
  for (const char* const size : {"-1", "1.5", "\"two\"", "[]", "4294967298"}) {
    EXPECT_THAT(
        of_json(
            std::string(
                R"({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": )") +
            size + "}}")
            .complaints,
        ElementsAre(HasSubstr(
            std::string("autotp_size of the DeepSpeed configuration is ") +
            size)));
  }
}

TEST(DeepSpeedRequest, ComparesAutotpSizeWithOtherDegrees) {
  DeepSpeedOptions options;
  options.hf_ds_config =
      R"({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}})";
  EXPECT_THAT(
      request({.tensor = 2, .deepspeed = options}).complaints,
      ElementsAre(HasSubstr(
          "tensor is 2, but tensor_parallel.autotp_size of the DeepSpeed "
          "configuration is 4; leave one of them out")));
  EXPECT_EQ(
      request({.tensor = 4, .deepspeed = options}).degree(Axis::tensor), 4);
  EXPECT_EQ(
      request({.deepspeed = options}, {{"PARALLELISM_CONFIG_TP_SIZE", "1"}})
          .degree(Axis::tensor),
      4);
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

TEST(DeepSpeedRequest, ClipsToOneWhereItIsAutomatic) {
  const auto clipping = [](const DeepSpeedOptions& options) {
    return request({.deepspeed = options}).step.gradient_clipping;
  };
  EXPECT_EQ(clipping({}), 1.0);
  EXPECT_EQ(clipping({.gradient_clipping = kAuto}), 1.0);
  EXPECT_EQ(clipping({.gradient_clipping = 0}), std::nullopt);
  EXPECT_EQ(clipping({.gradient_clipping = 0.25}), 0.25);
  const auto automatic = of_json(
      R"({"zero_optimization": {"stage": 3}, "gradient_clipping": "auto"})");
  EXPECT_EQ(automatic.step.gradient_clipping, 1.0);
  EXPECT_TRUE(automatic.step.clips_by_default);
  EXPECT_THAT(
      automatic.deepspeed_config, HasSubstr(R"("gradient_clipping":1.0)"));
  const auto off =
      of_json(R"({"zero_optimization": {"stage": 3}, "gradient_clipping": 0})");
  EXPECT_EQ(off.step.gradient_clipping, std::nullopt);
}

TEST(DeepSpeedRequest, ChoosesThePrecisionIfNobodyElseDoes) {
  const auto with = [](const std::string& section,
                       const std::string& precision,
                       bool is_open) {
    DeepSpeedOptions options;
    options.hf_ds_config =
        R"({"zero_optimization": {"stage": 2})" + section + "}";
    RequestSources found =
        testing::sources({.deepspeed = options}, {}, precision);
    found.precision_is_open = is_open;
    return read_training_request(found);
  };
  const std::string bf16 = R"(, "bf16": {"enabled": true})";
  const std::string fp16 = R"(, "fp16": {"enabled": true})";
  const auto chosen = with(bf16, "no", true);
  EXPECT_EQ(chosen.precision.mixed_precision, "bf16");
  EXPECT_EQ(chosen.precision.sharded.param_dtype, FloatType::bf16);
  EXPECT_EQ(with(fp16, "no", true).precision.mixed_precision, "fp16");
  EXPECT_EQ(with("", "no", true).precision.mixed_precision, "no");
  EXPECT_EQ(with(bf16, "bf16", false).precision.mixed_precision, "bf16");
  EXPECT_EQ(with("", "fp16", false).precision.mixed_precision, "fp16");
  EXPECT_EQ(
      with(R"(, "bf16": {"enabled": "auto"})", "bf16", false)
          .precision.mixed_precision,
      "bf16");
  EXPECT_THAT(
      with(bf16, "no", false).complaints,
      ElementsAre(HasSubstr("mixed_precision is no")));
  EXPECT_THAT(
      with(bf16, "fp16", false).complaints,
      ElementsAre(HasSubstr("enables bf16")));
  EXPECT_THAT(
      with(R"(, "bf16": {"enabled": false})", "bf16", false).complaints,
      ElementsAre(HasSubstr("bf16.enabled")));
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

TEST(DeepSpeedRequest, ListsFieldsThatDeepSpeedActsOn) {
  const auto names = [](const DeepSpeedOptions& options,
                        const testing::Variables& variables = {}) {
    return names_of(request({.deepspeed = options}, variables).ignored);
  };
  EXPECT_THAT(names({}), IsEmpty());
  EXPECT_THAT(
      names({}, {{"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false"}}),
      IsEmpty());
  EXPECT_THAT(
      names(
          {.transformer_moe_cls_names = "Experts"},
          {{"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true"},
           {"ACCELERATE_FP8_BACKEND", "MSAMP"},
           {"ACCELERATE_FP8_OPT_LEVEL", "O2"}}),
      ElementsAre(
          "zero3_save_16bit_model (get_state_dict and save_model always use "
          "full weights)",
          "transformer_moe_cls_names (only zero_stage 3 gathers layers)",
          "enable_msamp"));
  EXPECT_THAT(
      names({}, {{"ACCELERATE_FP8_BACKEND", "MSAMP"}}),
      ElementsAre("enable_msamp"));
  EXPECT_THAT(
      names({}, {{"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Experts"}}),
      ElementsAre(
          "transformer_moe_cls_names (only zero_stage 3 gathers layers)"));
}

TEST(DeepSpeedRequest, GathersLayersOfExpertsAsOne) {
  const auto found = request(
      {.deepspeed = DeepSpeedOptions{
           .zero_stage = 3, .transformer_moe_cls_names = "Experts, Moe,"}});
  EXPECT_THAT(
      found.sharding->units.policy.leaf_class_names,
      ElementsAre("Experts", "Moe"));
  EXPECT_THAT(found.ignored, IsEmpty());
  const auto launched = request(
      {.deepspeed = DeepSpeedOptions{.zero_stage = 3}},
      {{"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Experts"}});
  EXPECT_THAT(
      launched.sharding->units.policy.leaf_class_names, ElementsAre("Experts"));
}

TEST(DeepSpeedRequest, NamesTheOriginOfSuchAField) {
  const auto launched = request(
      {.deepspeed = DeepSpeedOptions()},
      {{"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true"}});
  ASSERT_EQ(launched.ignored.size(), 1u);
  EXPECT_EQ(
      launched.ignored[0].origin,
      "environment variable ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL");
  const auto in_json = of_json(
      R"({"zero_optimization": {"stage": 3,
          "stage3_gather_16bit_weights_on_model_save": true}})");
  ASSERT_EQ(in_json.ignored.size(), 1u);
  EXPECT_EQ(in_json.ignored[0].origin, "code");
}

TEST(DeepSpeedRequest, ChecksMsAmpAsAccelerateDoes) {
  testing::Variables variables{{"ACCELERATE_FP8_BACKEND", "msamp"}};
  const auto with_stage = [&](int stage) {
    return request(
        {.deepspeed = DeepSpeedOptions{.zero_stage = stage}}, variables);
  };
  EXPECT_THAT(
      with_stage(3).complaints,
      ElementsAre(HasSubstr("enable_msamp does not go together")));
  EXPECT_THAT(
      with_stage(2).deepspeed_config,
      HasSubstr(R"("msamp":{"enabled":true,"opt_level":"O1"})"));
  variables["ACCELERATE_FP8_OPT_LEVEL"] = "O2";
  EXPECT_THAT(
      with_stage(2).deepspeed_config,
      HasSubstr(R"("msamp":{"enabled":true,"opt_level":"O2"})"));
}

TEST(DeepSpeedRequest, KeepsShardsInHostMemory) {
  const auto found =
      request({.deepspeed = DeepSpeedOptions{.offload_param_device = "cpu"}});
  EXPECT_TRUE(found.sharding->cpu_offload);
  EXPECT_FALSE(found.sharding->disk);
}

TrainingRequest on_disk(
    const std::string& optimizer,
    const std::string& parameters,
    const std::string& rest = {}) {
  return of_json(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {)" +
      optimizer + R"(}, "offload_param": {)" + parameters + "}}" + rest + "}");
}

TEST(DeepSpeedRequest, KeepsOptimizerStateOnDisk) {
  const auto found = request(
      {.deepspeed = DeepSpeedOptions{
           .zero_stage = 1,
           .offload_optimizer_device = "nvme",
           .offload_optimizer_nvme_path = "/nvme"}});
  EXPECT_THAT(found.complaints, IsEmpty());
  EXPECT_THAT(found.ignored, IsEmpty());
  EXPECT_FALSE(found.sharding->cpu_offload);
  EXPECT_EQ(
      found.sharding->disk,
      (DiskRequest{.keeps_optimizer_state = true, .directory = "/nvme"}));
}

TEST(DeepSpeedRequest, KeepsParametersOnDisk) {
  const auto found = on_disk(
      R"("device": "cpu")",
      R"("device": "nvme", "nvme_path": "/nvme", "buffer_count": 5,
         "buffer_size": 1e8, "max_in_cpu": 0)");
  EXPECT_THAT(found.complaints, IsEmpty());
  EXPECT_THAT(found.ignored, IsEmpty());
  EXPECT_TRUE(found.sharding->cpu_offload);
  EXPECT_EQ(
      found.sharding->disk,
      (DiskRequest{
          .keeps_parameters = true,
          .directory = "/nvme",
          .buffer_elements = 100'000'000,
          .buffer_count = 5,
          .elements_in_memory = 0}));
}

TEST(DeepSpeedRequest, ReadsAheadAsMuchAsItSays) {
  const auto with = [](const std::string& device) {
    return request(
        {.deepspeed = DeepSpeedOptions{
             .hf_ds_config = R"({"zero_optimization": {"stage": 3,
               "stage3_prefetch_bucket_size": 5e7,
               "offload_param": {"device": ")" +
                 device + R"(", "nvme_path": "/nvme"}}})"}});
  };
  const auto found = with("nvme");
  EXPECT_THAT(found.ignored, IsEmpty());
  EXPECT_EQ(found.sharding->disk->elements_ahead, 50'000'000);
  EXPECT_THAT(names_of(with("cpu").ignored), Not(IsEmpty()));
}

TEST(DeepSpeedRequest, KeepsBothOnOneDiskOrOnTwo) {
  const std::string optimizer =
      R"("device": "nvme", "nvme_path": "/a", "buffer_count": 4,
         "pipeline_read": false, "pipeline_write": false)";
  const std::string parameters =
      R"("device": "nvme", "buffer_count": 7, "buffer_size": "auto",)";
  DiskRequest expected{
      .keeps_optimizer_state = true,
      .keeps_parameters = true,
      .directory = "/a",
      .buffer_count = 7,
      .overlaps_reads = false,
      .overlaps_writes = false};
  EXPECT_EQ(
      on_disk(optimizer, parameters + R"("nvme_path": "/a")").sharding->disk,
      expected);
  expected.parameter_directory = "/b";
  EXPECT_EQ(
      on_disk(optimizer, parameters + R"("nvme_path": "/b")").sharding->disk,
      expected);
}

TEST(DeepSpeedRequest, OverlapsReadsAndWritesUnlessToldNotTo) {
  const std::string nvme = R"("device": "nvme", "nvme_path": "/nvme")";
  const DiskRequest silent = *on_disk(nvme, "").sharding->disk;
  EXPECT_TRUE(silent.overlaps_reads);
  EXPECT_TRUE(silent.overlaps_writes);
  const DiskRequest half =
      *on_disk(nvme + R"(, "pipeline_write": false)", "").sharding->disk;
  EXPECT_TRUE(half.overlaps_reads);
  EXPECT_FALSE(half.overlaps_writes);
}

TEST(DeepSpeedRequest, SaysWhatHasNoMeaningOnDisk) {
  const std::string nvme =
      R"("device": "nvme", "nvme_path": "/nvme", "pin_memory": true)";
  EXPECT_THAT(
      names_of(on_disk(
                   nvme + R"(, "ratio": 0.5, "fast_init": true,
                              "pipeline": true)",
                   nvme,
                   R"(, "aio": {"block_size": 1048576, "queue_depth": 8,
                                "single_submit": false})")
                   .ignored),
      ElementsAre(
          "aio.block_size (the library chooses how it reads and writes)",
          "aio.queue_depth (the library chooses how it reads and writes)",
          "aio.single_submit (the library chooses how it reads and writes)",
          "zero_optimization.offload_optimizer.fast_init (the library chooses "
          "how files begin)",
          "zero_optimization.offload_optimizer.pin_memory (memory that devices "
          "copy from is pinned anyway)",
          "zero_optimization.offload_optimizer.pipeline (pipeline_read and "
          "pipeline_write act)",
          "zero_optimization.offload_optimizer.ratio (the whole step of a "
          "shard is on one device)",
          "zero_optimization.offload_param.pin_memory (memory that devices "
          "copy from is pinned anyway)"));
}

TEST(DeepSpeedRequest, SaysThatOnlyNvmeHasPathsAndBuffers) {
  const auto found = on_disk(
      R"("device": "cpu", "nvme_path": "/nvme", "pipeline_read": true)",
      R"("device": "none", "max_in_cpu": 5)");
  EXPECT_FALSE(found.sharding->disk);
  EXPECT_THAT(
      names_of(found.ignored),
      ElementsAre(
          "offload_optimizer_nvme_path (its device is not nvme)",
          "zero_optimization.offload_optimizer.pipeline_read (only the device "
          "nvme has it)",
          "zero_optimization.offload_param.max_in_cpu (only the device nvme "
          "has it)"));
  const auto launched = request(
      {.deepspeed = DeepSpeedOptions()},
      {{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/nvme"}});
  ASSERT_EQ(launched.ignored.size(), 1u);
  EXPECT_EQ(
      launched.ignored[0].origin,
      "environment variable ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH");
}

TEST(DeepSpeedRequest, RefusesToKeepOnDiskWhatItsStageDoesNotShard) {
  const auto complaints = [](int stage) {
    return request({.deepspeed =
                        DeepSpeedOptions{
                            .zero_stage = stage,
                            .offload_optimizer_device = "nvme",
                            .offload_param_device = "nvme",
                            .offload_optimizer_nvme_path = "/nvme",
                            .offload_param_nvme_path = "/nvme"}})
        .complaints;
  };
  EXPECT_THAT(complaints(3), IsEmpty());
  const std::string parameters =
      "[config] offload_param_device must be none or cpu unless zero_stage is "
      "3, but is nvme with zero_stage ";
  EXPECT_THAT(complaints(2), ElementsAre(parameters + "2"));
  EXPECT_THAT(
      complaints(0),
      ElementsAre(
          "[config] offload_optimizer_device must be none where zero_stage is "
          "0, which shards nothing, but is nvme\n" +
          parameters + "0"));
}

TEST(DeepSpeedRequest, RefusesNvmeWithoutADirectory) {
  EXPECT_THAT(
      on_disk(R"("device": "nvme")", R"("device": "nvme", "nvme_path": "")")
          .complaints,
      ElementsAre(
          "[config] offload_optimizer_nvme_path must be a directory where "
          "offload_optimizer_device is nvme, but is none\n"
          "[config] offload_param_nvme_path must be a directory where "
          "offload_param_device is nvme, but is empty"));
}

TEST(DeepSpeedRequest, RefusesBuffersThatCannotBe) {
  const auto complaint = [](const std::string& member) {
    return on_disk("", R"("device": "nvme", "nvme_path": "/nvme", )" + member)
        .complaints;
  };
  const std::string section = "[config] zero_optimization.offload_param.";
  EXPECT_THAT(
      complaint(R"("buffer_size": 0.5)"),
      ElementsAre(
          section +
          "buffer_size of the DeepSpeed configuration must be a whole number "
          "of at least 1, but is 0.5"));
  EXPECT_THAT(
      complaint(R"("buffer_count": "many")"),
      ElementsAre(
          section +
          "buffer_count of the DeepSpeed configuration must be a whole number "
          "of at least 1, but is \"many\""));
  EXPECT_THAT(
      complaint(R"("buffer_count": 1e9)"),
      ElementsAre(HasSubstr("must be at most 1048576, but is 1000000000")));
  EXPECT_THAT(
      complaint(R"("max_in_cpu": -1)"),
      ElementsAre(HasSubstr("of at least 0, but is -1")));
  EXPECT_THAT(
      on_disk(
          R"("device": "nvme", "nvme_path": "/nvme", "pipeline_read": 1)", "")
          .complaints,
      ElementsAre(HasSubstr(
          "pipeline_read of the DeepSpeed configuration must be true or false, "
          "but is 1")));
}

}  // namespace translate_deepspeed_test
}  // namespace accelerate::detail
