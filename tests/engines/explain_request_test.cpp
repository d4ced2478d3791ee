#include "engines/explain_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sources.h"

namespace accelerate::detail {
namespace explain_request_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::request;

TEST(Explanation, OfNothing) {
  EXPECT_EQ(
      explain(request({})),
      "  engine              none\n"
      "  degrees             replicate the ranks that are left\n"
      "  sharding            none: every rank has a replica\n"
      "  recomputation       none\n"
      "  step                accumulation as the program says, clipping as the "
      "program says\n"
      "  precision           as the parameters are\n"
      "  optimizer           the program's\n"
      "  scheduler           the program's\n");
}

TEST(Explanation, OfADeepSpeedConfiguration) {
  DeepSpeedOptions options;
  options.hf_ds_config =
      R"({"zero_optimization": {"stage": 2, "overlap_comm": true,
          "offload_optimizer": {"device": "cpu"}},
          "gradient_clipping": 0.5, "gradient_accumulation_steps": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}})";
  EXPECT_EQ(
      explain(request({.deepspeed = options}, {}, "bf16")),
      "  engine              DeepSpeed's settings\n"
      "  degrees             replicate the ranks that are left, shard all "
      "ranks that the other degrees leave\n"
      "  sharding            optimizer state and gradients (ZeRO stage 2); "
      "shards stay in host memory\n"
      "  wrap policy         elements of the outermost Sequentials and "
      "ModuleLists\n"
      "  recomputation       none\n"
      "  step                gradients accumulate over 4 micro-steps, clipped "
      "to a norm of 0.5\n"
      "  precision           autocast to bf16; parameters gathered in bf16; "
      "gradients reduced in bf16\n"
      "  optimizer           AdamW {\"lr\":0.5}, made by "
      "optimizer_from_deepspeed()\n"
      "  scheduler           the program's\n"
      "  ignored             zero_optimization.overlap_comm (code): no "
      "counterpart here\n");
}

TEST(Explanation, OfFSDPsOptions) {
  const std::string text = explain(request(
      {.replicate = 2,
       .fully_sharded = FullyShardedDataParallelOptions{
           .fsdp_version = 2,
           .reshard_after_forward = 2,
           .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
           .transformer_cls_names_to_wrap =
               std::vector<std::string>{"Block", "Head"},
           .activation_checkpointing = true}}));
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("FSDP's settings"),
          HasSubstr(
              "replicate 2, shard all ranks that the other degrees leave"),
          HasSubstr("between forward and backward parameters are sharded over "
                    "2 ranks"),
          HasSubstr("wrap policy         modules of class Block, Head\n"),
          HasSubstr("recomputation       modules of class Block, Head\n")));
}

TEST(Explanation, HasErrorsToo) {
  EXPECT_THAT(
      explain(request({.parallelism_config = ParallelismConfig{.sp_size = 0}})),
      HasSubstr(
          "error               [config] sp_size must be at least 1, but is 0"));
}

}  // namespace explain_request_test
}  // namespace accelerate::detail
