// The effect of every engine option that the launcher hands to a program.
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/explain_request.h"
#include "engines/sources.h"
#include "support/option_samples.h"

namespace accelerate::detail {
namespace option_effects_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::sample_of;
using testing::sources;
using testing::Variables;

const Variables kNothing;
const Variables kFsdp{{"ACCELERATE_USE_FSDP", "true"}};
const Variables kFsdp2{{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_VERSION", "2"}};
const Variables kDeepSpeed{{"ACCELERATE_USE_DEEPSPEED", "true"}};
const Variables kDeepSpeed3{
    {"ACCELERATE_USE_DEEPSPEED", "true"},
    {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"}};
const Variables kMegatron{{"ACCELERATE_USE_MEGATRON_LM", "true"}};
const Variables kRecomputes{
    {"ACCELERATE_USE_MEGATRON_LM", "true"},
    {"MEGATRON_LM_RECOMPUTE_ACTIVATIONS", "true"}};

Variables with(Variables variables, const Variables& more) {
  variables.insert(more.begin(), more.end());
  return variables;
}

// An option, the other variables set, a value, and a phrase that the request
// contains only with this value.
struct Effect {
  std::string key;
  Variables company;
  std::string value;
  std::string phrase;
};

void PrintTo(const Effect& effect, std::ostream* out) { *out << effect.key; }

std::vector<Effect> effects() {
  const std::string in_host_memory = "shards stay in host memory";
  return {
      {"parallelism_config_dp_replicate_size", kNothing, "2", "replicate 2"},
      {"parallelism_config_dp_shard_size", kNothing, "2", "shard 2"},
      {"parallelism_config_tp_size", kNothing, "2", "tensor 2"},
      {"parallelism_config_cp_size", kNothing, "2", "context 2"},
      {"parallelism_config_pp_size", kNothing, "2", "pipeline 2"},
      {"parallelism_config_ep_size", kNothing, "2", "expert 2"},
      {"parallelism_config_sp_size", kNothing, "2", "context 2"},
      {"parallelism_config_cp_comm_strategy",
       {{"PARALLELISM_CONFIG_CP_SIZE", "2"}},
       "alltoall",
       "keys and values of one rank after another"},
      {"parallelism_config_sp_seq_length",
       {{"PARALLELISM_CONFIG_SP_SIZE", "2"},
        {"PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "false"}},
       "16",
       "all of 16 positions"},
      {"parallelism_config_sp_seq_length_is_variable",
       {{"PARALLELISM_CONFIG_SP_SIZE", "2"},
        {"PARALLELISM_CONFIG_SP_SEQ_LENGTH", "16"}},
       "false",
       "all of 16 positions"},
      {"use_fsdp", kNothing, "true", "FSDP's settings"},
      {"fsdp_version",
       with(
           kFsdp,
           {{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
            {"FSDP_MIN_NUM_PARAMS", "7"}}),
       "2",
       "modules with more than 7 parameters\n"},
      {"fsdp_offload_params", kFsdp, "true", in_host_memory},
      {"fsdp_offload_directory",
       with(kFsdp, {{"FSDP_OFFLOAD_PARAMS", "true"}}),
       "/nvme",
       "on disk             optimizer state, parameters and gradients in "
       "/nvme\n"},
      {"offload_directory_in_memory",
       with(
           kFsdp,
           {{"FSDP_OFFLOAD_PARAMS", "true"},
            {"ACCELERATE_CPP_FSDP_OFFLOAD_DIRECTORY", "/nvme"}}),
       "true",
       "in /nvme; the files may be in memory\n"},
      {"offload_directory_in_memory",
       with(
           kDeepSpeed,
           {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
            {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/nvme"}}),
       "true",
       "in /nvme; the files may be in memory\n"},
      {"step_in_backward",
       with(
           kFsdp,
           {{"FSDP_OFFLOAD_PARAMS", "true"},
            {"ACCELERATE_CPP_FSDP_OFFLOAD_DIRECTORY", "/nvme"}}),
       "true",
       "in /nvme; backward steps\n"},
      {"step_in_backward",
       with(
           kDeepSpeed,
           {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
            {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/nvme"}}),
       "true",
       "in /nvme; backward steps\n"},
      {"fsdp_min_num_params",
       with(kFsdp, {{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"}}),
       "7",
       "modules with at least 7 parameters"},
      {"fsdp_sharding_strategy",
       kFsdp,
       "SHARD_GRAD_OP",
       "parameters stay unsharded from a forward"},
      {"fsdp_sharding_strategy", kFsdp, "NO_SHARD", "every rank has a replica"},
      {"fsdp_sharding_strategy",
       kFsdp,
       "HYBRID_SHARD",
       "shard the ranks of each node"},
      {"fsdp_reshard_after_forward",
       kFsdp2,
       "false",
       "parameters stay unsharded from a forward"},
      {"fsdp_reshard_after_forward", kFsdp2, "4", "sharded over 4 ranks"},
      {"fsdp_auto_wrap_policy", kFsdp, "NO_WRAP", "the model is one unit"},
      {"fsdp_transformer_layer_cls_to_wrap",
       with(kFsdp, {{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}}),
       "Block, Head",
       "modules of class Block, Head\n"},
      {"fsdp_backward_prefetch",
       kFsdp,
       "NO_PREFETCH",
       "backwards do not gather units ahead"},
      {"fsdp_forward_prefetch",
       kFsdp,
       "false",
       "forwards do not gather units ahead"},
      {"fsdp_cpu_ram_efficient_loading",
       kFsdp,
       "true",
       "only rank 0 makes initial values; only rank 0 reads weights"},
      {"fsdp_activation_checkpointing",
       kFsdp,
       "true",
       "recomputation       elements of the outermost"},
      {"fsdp_activation_checkpointing_offload",
       with(kFsdp2, {{"FSDP_ACTIVATION_CHECKPOINTING", "true"}}),
       "true",
       "inputs stay in host memory"},
      {"fsdp_ignored_modules",
       kFsdp,
       "head.*",
       "modules that match \"head.*\" are not"},
      {"use_deepspeed", kNothing, "true", "DeepSpeed's settings"},
      {"deepspeed_moe_layer_cls_names",
       kDeepSpeed3,
       "Experts, Moe",
       "modules of class Experts, Moe with everything in them"},
      {"zero_stage", kDeepSpeed, "0", "every rank has a replica"},
      {"zero_stage", kDeepSpeed, "1", "(ZeRO stage 1)"},
      {"zero_stage", kDeepSpeed, "3", "(ZeRO stage 3)"},
      {"gradient_clipping", kDeepSpeed, "0.5", "clipped to a norm of 0.5\n"},
      {"offload_optimizer_device", kDeepSpeed, "cpu", in_host_memory},
      {"offload_optimizer_device",
       with(
           kDeepSpeed,
           {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/nvme"}}),
       "nvme",
       "on disk             optimizer state and gradients in /nvme\n"},
      {"offload_optimizer_nvme_path",
       with(
           kDeepSpeed,
           {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"}}),
       "/nvme",
       "on disk             optimizer state and gradients in /nvme\n"},
      {"offload_param_device", kDeepSpeed3, "cpu", in_host_memory},
      {"offload_param_device",
       with(
           kDeepSpeed3,
           {{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/nvme"}}),
       "nvme",
       "on disk             parameters in /nvme\n"},
      {"offload_param_nvme_path",
       with(
           kDeepSpeed3,
           {{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme"}}),
       "/nvme",
       "on disk             parameters in /nvme\n"},
      {"zero3_init_flag",
       kDeepSpeed3,
       "false",
       "after each use (ZeRO stage 3)\n"},
      {"deepspeed_config_file",
       kDeepSpeed,
       R"({"zero_optimization": {"stage": 1}, "gradient_clipping": 0.25})",
       "clipped to a norm of 0.25\n"},
      {"deepspeed_config_file",
       kDeepSpeed,
       R"({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 2}})",
       "as infer_parallelize_plan() chooses, for models without a plan\n"},
      {"use_megatron_lm", kNothing, "true", "Megatron-LM's settings"},
      {"megatron_lm_tp_degree", kMegatron, "2", "tensor 2"},
      {"megatron_lm_pp_degree", kMegatron, "2", "pipeline 2"},
      {"megatron_lm_context_parallel_size", kMegatron, "2", "context 2"},
      {"megatron_lm_expert_model_parallel_size", kMegatron, "2", "expert 2"},
      {"megatron_lm_expert_tensor_parallel_size",
       with(kMegatron, {{"MEGATRON_LM_TP_DEGREE", "2"}}),
       "2",
       "each is split by the ranks along tensor"},
      {"megatron_lm_recompute_activations",
       kMegatron,
       "true",
       "recomputation       elements of the outermost"},
      {"megatron_lm_num_micro_batches",
       with(kMegatron, {{"MEGATRON_LM_PP_DEGREE", "2"}}),
       "8",
       "8 micro-batches, unless PipelineOptions say otherwise"},
      {"megatron_lm_recompute_granularity",
       kRecomputes,
       "selective",
       "recomputation       modules of attention\n"},
      {"megatron_lm_recompute_method",
       kRecomputes,
       "block",
       "and ModuleLists, the first 1 of each rank\n"},
      {"megatron_lm_recompute_num_layers",
       kRecomputes,
       "3",
       "and ModuleLists, 3 at a time\n"},
      {"megatron_lm_sequence_parallelism",
       with(kMegatron, {{"MEGATRON_LM_TP_DEGREE", "2"}}),
       "true",
       "sequences           divided between split layers\n"},
      {"megatron_lm_decoder_last_pipeline_num_layers",
       with(kMegatron, {{"MEGATRON_LM_PP_DEGREE", "2"}}),
       "3",
       "3 layers on the last rank, unless PipelineOptions say otherwise"},
      {"megatron_lm_use_precision_aware_optimizer",
       kMegatron,
       "true",
       "fp32 master weights of parameters in bf16 and fp16\n"},
      {"megatron_lm_calculate_per_token_loss",
       kMegatron,
       "false",
       "micro-steps of equal weight\n"},
      {"megatron_lm_no_save_optim",
       kMegatron,
       "true",
       "saved without optimizers and schedules"},
      {"megatron_lm_no_load_optim",
       kMegatron,
       "true",
       "loaded without optimizers and schedules"},
      {"megatron_lm_use_distributed_optimizer",
       kMegatron,
       "true",
       "optimizer state (ZeRO stage 1)"},
      {"megatron_lm_use_custom_fsdp",
       kMegatron,
       "true",
       "after each use (ZeRO stage 3)"},
      {"megatron_lm_optimizer_cpu_offload",
       with(kMegatron, {{"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "true"}}),
       "true",
       in_host_memory},
      {"megatron_lm_gradient_clipping",
       kMegatron,
       "0.5",
       "clipped to a norm of 0.5\n"},
      {"megatron_lm_gradient_clipping",
       kMegatron,
       "0",
       "clipping as the program says"},
  };
}

std::string explained(const Variables& variables) {
  return explain(read_training_request(sources({}, variables)));
}

class EngineOption : public ::testing::TestWithParam<Effect> {};

TEST_P(EngineOption, ChangesTheRequest) {
  const Effect& effect = GetParam();
  const OptionSpec* const spec = find_option(effect.key);
  ASSERT_NE(spec, nullptr);
  EXPECT_THAT(explained(effect.company), Not(HasSubstr(effect.phrase)));
  EXPECT_THAT(
      explained(
          with(effect.company, {{std::string(spec->variable), effect.value}})),
      HasSubstr(effect.phrase));
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    EngineOption,
    ::testing::ValuesIn(effects()),
    [](const ::testing::TestParamInfo<Effect>& effect) {
      return effect.param.key + "_" + std::to_string(effect.index);
    });

// Options of an engine have a variable and a section of the file, or are the
// engine's switch. The fp8 options are in fp8_recipe_test.cpp.
bool is_of_engine(const OptionSpec& spec) {
  const bool is_switch = spec.key.starts_with("use_") &&
      spec.key != "use_cpu" && spec.key != "use_parallelism_config";
  return !spec.variable.empty() && spec.section != "fp8_config" &&
      (!spec.section.empty() || is_switch);
}

TEST(EngineOptions, HaveAnEffectInTheTableAbove) {
  std::vector<std::string> keys;
  for (const Effect& effect : effects()) keys.push_back(effect.key);
  for (const OptionSpec& spec : option_table()) {
    if (spec.use != OptionUse::acts || !is_of_engine(spec)) continue;
    EXPECT_THAT(keys, Contains(std::string(spec.key)));
  }
}

// Everything in a request, including what explain() leaves out.
std::string fingerprint(const TrainingRequest& request) {
  std::string text = explain(request) + request.deepspeed_config +
      std::to_string(request.fsdp_version);
  if (request.sharding && request.sharding->prefetch_after_gradients)
    text += "prefetches after gradients";
  return text;
}

// A setting is reported even under an engine that does not know it, or beside
// settings that make it void.
TEST(EngineOptions, ActOrAreReportedUnderEveryEngine) {
  const std::vector<Variables> companies{
      kNothing,
      kFsdp,
      with(
          kFsdp,
          {{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
           {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block"}}),
      kFsdp2,
      with(kFsdp2, {{"FSDP_ACTIVATION_CHECKPOINTING", "true"}}),
      kDeepSpeed,
      kDeepSpeed3,
      with(kDeepSpeed, {{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "0"}}),
      with(kDeepSpeed, {{"ACCELERATE_FP8_BACKEND", "msamp"}}),
      kMegatron,
      with(kMegatron, {{"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "true"}}),
      {{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}},
      {{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}, {"FSDP_VERSION", "2"}},
  };
  for (const OptionSpec& spec : option_table()) {
    if (spec.variable.empty() || spec.section.empty()) continue;
    const std::string variable(spec.variable), value = sample_of(spec);
    if (value.empty() || is_default(spec, parse_option(spec, value))) continue;
    for (const Variables& company : companies) {
      if (company.contains(variable)) continue;
      // These ask for what happens anyway. Version 2 has no forward
      // prefetching, which is reported.
      const bool shards = company.contains("ACCELERATE_USE_FSDP") ||
          company.contains("PARALLELISM_CONFIG_DP_SHARD_SIZE");
      const bool is_version_1 = shards && !company.contains("FSDP_VERSION");
      if ((spec.key == "fsdp_forward_prefetch" && is_version_1) ||
          (spec.key == "zero3_init_flag" && company == kDeepSpeed3)) {
        continue;
      }
      std::string where = variable + "=" + value + " beside";
      for (const auto& [name, other] : company)
        where += " " + name + "=" + other;
      SCOPED_TRACE(where);
      const RequestSources given =
          sources({}, with(company, {{variable, value}}));
      const TrainingRequest request = read_training_request(given);
      if (!request.complaints.empty()) continue;
      std::vector<std::string> reported;
      for (const GivenSetting& setting : given.settings.unread())
        reported.push_back(setting.where);
      for (const IgnoredSetting& setting : request.ignored)
        reported.push_back(setting.origin);
      const std::string origin = "environment variable " + variable;
      if (spec.use == OptionUse::acts &&
          fingerprint(request) !=
              fingerprint(read_training_request(sources({}, company)))) {
        continue;
      }
      EXPECT_THAT(reported, Contains(origin));
    }
  }
}

TEST(EngineOptions, OfOtherStagesThanThreeCannotShardAsTheyAreMade) {
  const auto ignored = [](const DeepSpeedOptions& options,
                          const Variables& variables = {}) {
    return read_training_request(sources({.deepspeed = options}, variables))
        .ignored;
  };
  const auto launched =
      ignored({.zero_stage = 2}, {{"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}});
  EXPECT_THAT(
      names_of(launched),
      ::testing::ElementsAre("zero3_init_flag (only zero_stage 3 has it)"));
  EXPECT_EQ(
      launched.at(0).origin,
      "environment variable ACCELERATE_DEEPSPEED_ZERO3_INIT");
  EXPECT_EQ(
      ignored({.zero_stage = 1, .zero3_init_flag = true}).at(0).origin, "code");
  EXPECT_THAT(ignored({.zero_stage = 2, .zero3_init_flag = false}), IsEmpty());
  EXPECT_THAT(ignored({.zero_stage = 3, .zero3_init_flag = true}), IsEmpty());
}

TEST(EngineOptions, OfVersion2AreReportedWhereOnlyADegreeAsksForSharding) {
  const TrainingRequest request = read_training_request(sources(
      {.shard = 2},
      {{"FSDP_VERSION", "2"}, {"FSDP_BACKWARD_PREFETCH", "BACKWARD_POST"}}));
  EXPECT_THAT(
      names_of(request.ignored),
      ::testing::ElementsAre("fsdp_backward_prefetch"));
}

TEST(EngineOptions, OfTwoKindsMustNameOneDegree) {
  const auto complaints = [](const Variables& more) {
    return read_training_request(sources({}, with(kMegatron, more))).complaints;
  };
  EXPECT_THAT(
      complaints({{"PARALLELISM_CONFIG_TP_SIZE", "2"}}),
      ::testing::ElementsAre(
          "[parallel] tensor is 1 by Megatron-LM's settings, but "
          "parallelism_config_tp_size is 2; leave one of them out"));
  EXPECT_THAT(
      complaints(
          {{"PARALLELISM_CONFIG_PP_SIZE", "2"},
           {"MEGATRON_LM_PP_DEGREE", "2"}}),
      IsEmpty());
  EXPECT_THAT(
      complaints(
          {{"PARALLELISM_CONFIG_CP_SIZE", "1"},
           {"MEGATRON_LM_CONTEXT_PARALLEL_SIZE", "2"}}),
      IsEmpty());
}

TEST(UseParallelismConfig, IsReportedWithoutADegree) {
  const auto unread = [](const Variables& variables) {
    const RequestSources given = sources({}, variables);
    read_training_request(given);
    std::vector<std::string> keys;
    for (const GivenSetting& setting : given.settings.unread())
      keys.push_back(setting.key);
    return keys;
  };
  const Variables alone{{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}};
  EXPECT_THAT(unread(alone), ::testing::ElementsAre("use_parallelism_config"));
  EXPECT_THAT(
      unread(with(alone, {{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}})),
      IsEmpty());
}

}  // namespace option_effects_test
}  // namespace accelerate::detail
