// Every option that is accepted but has no effect here is named in the
// program's single warning about such settings.
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>

namespace accelerate {
namespace reported_fields_test {

// Options of a program with one such field, and the field's name in the
// warning.
struct Field {
  std::string name;
  ParallelOptions parallel = {};
};

void PrintTo(const Field& field, std::ostream* out) { *out << field.name; }

// A single field of Megatron-LM's options.
template <class T>
Field megatron(
    const std::string& name,
    std::optional<T> MegatronLMOptions::*field,
    T value) {
  MegatronLMOptions options;
  options.*field = std::move(value);
  return {name, {.megatron_lm = std::move(options)}};
}

std::vector<Field> megatron_fields() {
  using M = MegatronLMOptions;
  return {
      megatron("num_micro_batches", &M::num_micro_batches, 2),
      megatron("sequence_parallelism", &M::sequence_parallelism, true),
      megatron<std::string>(
          "recompute_granularity", &M::recompute_granularity, "selective"),
      megatron<std::string>("recompute_method", &M::recompute_method, "block"),
      megatron("recompute_num_layers", &M::recompute_num_layers, 2),
      megatron(
          "decoder_last_pipeline_num_layers",
          &M::decoder_last_pipeline_num_layers,
          2),
      megatron(
          "num_layers_per_virtual_pipeline_stage",
          &M::num_layers_per_virtual_pipeline_stage,
          2),
      megatron<std::int64_t>("train_iters", &M::train_iters, 9),
      megatron<std::int64_t>("train_samples", &M::train_samples, 9),
      megatron<std::string>(
          "weight_decay_incr_style", &M::weight_decay_incr_style, "cosine"),
      megatron("start_weight_decay", &M::start_weight_decay, 0.1),
      megatron("end_weight_decay", &M::end_weight_decay, 0.1),
      megatron<std::string>("lr_decay_style", &M::lr_decay_style, "cosine"),
      megatron<std::int64_t>("lr_decay_iters", &M::lr_decay_iters, 9),
      megatron<std::int64_t>("lr_decay_samples", &M::lr_decay_samples, 9),
      megatron<std::int64_t>("lr_warmup_iters", &M::lr_warmup_iters, 9),
      megatron<std::int64_t>("lr_warmup_samples", &M::lr_warmup_samples, 9),
      megatron("lr_warmup_fraction", &M::lr_warmup_fraction, 0.5),
      megatron("min_lr", &M::min_lr, 0.1),
      megatron<std::string>(
          "other_megatron_args.a", &M::other_megatron_args, R"({"a": 1})"),
      megatron<std::string>(
          "other_megatron_args.seq_length",
          &M::other_megatron_args,
          R"({"seq_length": 16})"),
      megatron<std::string>(
          "other_megatron_args.hidden_dropout",
          &M::other_megatron_args,
          R"({"hidden_dropout": 0.1})"),
  };
}

Field fsdp(std::string name, FullyShardedDataParallelOptions options) {
  return {std::move(name), {.fully_sharded = std::move(options)}};
}

Field casts(std::string name, int version, const MixedPrecisionPolicy& policy) {
  return fsdp(
      "mixed_precision_policy." + std::move(name),
      {.fsdp_version = version, .mixed_precision_policy = policy});
}

std::vector<Field> fully_sharded_fields() {
  using enum ShardingStrategy;
  const auto copied = [](std::string name,
                         FullyShardedDataParallelOptions options) {
    options.sharding_strategy = no_shard;
    return fsdp(std::move(name), std::move(options));
  };
  return {
      fsdp(
          "backward_prefetch",
          {.fsdp_version = 2,
           .backward_prefetch = BackwardPrefetch::backward_post}),
      // With casts of the policy, which do nothing either.
      fsdp(
          "backward_prefetch",
          {.fsdp_version = 2,
           .backward_prefetch = BackwardPrefetch::none,
           .mixed_precision_policy =
               MixedPrecisionPolicy{.param_dtype = FloatType::bf16}}),
      fsdp(
          "sharding_strategy",
          {.fsdp_version = 2,
           .sharding_strategy = full_shard,
           .reshard_after_forward = true}),
      fsdp("reshard_after_forward", {.reshard_after_forward = shard_grad_op}),
      fsdp(
          "transformer_cls_names_to_wrap",
          {.transformer_cls_names_to_wrap =
               std::vector<std::string>{"Linear"}}),
      fsdp("min_num_params", {.min_num_params = 5}),
      copied(
          "mixed_precision_policy",
          {.mixed_precision_policy =
               MixedPrecisionPolicy{.param_dtype = FloatType::bf16}}),
      copied(
          "backward_prefetch",
          {.backward_prefetch = BackwardPrefetch::backward_post}),
      copied("forward_prefetch", {.forward_prefetch = false}),
      copied("limit_all_gathers", {.limit_all_gathers = false}),
      copied("ignored_modules", {.ignored_modules = "head"}),
      copied("auto_wrap_policy", {.auto_wrap_policy = AutoWrapPolicy::no_wrap}),
      casts("cast_forward_inputs", 1, {.cast_forward_inputs = true}),
      casts("cast_root_forward_inputs", 2, {.cast_root_forward_inputs = true}),
  };
}

std::vector<Field> other_fields() {
  const auto deepspeed = [](std::string name, DeepSpeedOptions options) {
    return Field{std::move(name), {.deepspeed = std::move(options)}};
  };
  const auto degrees = [](std::string name, ParallelismConfig config) {
    return Field{std::move(name), {.parallelism_config = std::move(config)}};
  };
  const auto replicas = [](std::string name, ReplicateOptions options) {
    return Field{
        "replicate_options." + std::move(name),
        {.replicate_options = std::move(options)}};
  };
  const auto recomputing = [](std::string name,
                              ActivationCheckpointingOptions options) {
    return Field{
        "activation_checkpointing." + std::move(name),
        {.activation_checkpointing = std::move(options)}};
  };
  return {
      deepspeed(
          "transformer_moe_cls_names",
          {.transformer_moe_cls_names = "Experts"}),
      deepspeed(
          "offload_optimizer_nvme_path",
          {.offload_optimizer_nvme_path = "/nvme"}),
      deepspeed(
          "offload_param_nvme_path", {.offload_param_nvme_path = "/nvme"}),
      degrees("cp_comm_strategy", {.cp_comm_strategy = "alltoall"}),
      degrees("sp_seq_length", {.sp_seq_length = 16}),
      degrees("sp_seq_length_is_variable", {.sp_seq_length_is_variable = true}),
      replicas("power_sgd", {.power_sgd = {.matrix_approximation_rank = 2}}),
      replicas("power_sgd", {.power_sgd = {.start_power_sgd_iter = 2}}),
      replicas("power_sgd", {.power_sgd = {.min_compression_rate = 3}}),
      replicas("power_sgd", {.power_sgd = {.use_error_feedback = false}}),
      replicas("power_sgd", {.power_sgd = {.warm_start = false}}),
      replicas("power_sgd", {.power_sgd = {.orthogonalization_epsilon = 1}}),
      replicas("power_sgd", {.power_sgd = {.random_seed = 1}}),
      recomputing(
          "transformer_cls_names_to_wrap",
          {.transformer_cls_names_to_wrap = {"Linear"}}),
      recomputing("min_num_params", {.min_num_params = 5}),
  };
}

std::vector<Field> all_fields() {
  std::vector<Field> all = megatron_fields();
  for (auto fields : {fully_sharded_fields(), other_fields()})
    all.insert(all.end(), fields.begin(), fields.end());
  return all;
}

class ReportedField : public ::testing::TestWithParam<Field> {};

TEST_P(ReportedField, IsNamedInTheWarning) {
  std::vector<std::string> warnings;
  AcceleratorOptions options{.parallel = GetParam().parallel};
  options.world = {.rank = 0, .size = 1, .device = at::kCPU};
  options.world.logger = Logger(
      [&](const LogRecord& record) {
        warnings.push_back(std::string(record.message));
      },
      LogLevel::warning);
  const Accelerator accelerator(options);
  accelerator.end_training();
  const std::string start =
      "settings that have no effect in this program: " + GetParam().name +
      " (code";
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::StartsWith(start));
  // No other field is named.
  EXPECT_EQ(warnings[0].find("), "), std::string::npos) << warnings[0];
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ReportedField,
    ::testing::ValuesIn(all_fields()),
    [](const ::testing::TestParamInfo<Field>& field) {
      std::string name = field.param.name;
      for (char& letter : name) letter = letter == '.' ? '_' : letter;
      return name + "_" + std::to_string(field.index);
    });

}  // namespace reported_fields_test
}  // namespace accelerate
