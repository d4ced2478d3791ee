#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/parity_task.h"

namespace accelerate::testing {

/// What the parity suite trains with.
struct Technique {
  std::string name;
  ParallelOptions parallel = {};
  /// Parameters begin in the precision's dtype, with fp32 masters.
  bool master_weights = false;
  int divides_ranks = 1;
  /// All ranks are along this axis.
  std::optional<Axis> axis = std::nullopt;
  bool has_experts = false;
  /// Uses MS-AMP's recipe in fp8.
  bool is_ms_amp = false;
  /// Used in fp8.
  Float8Attention float8_attention = Float8Attention::none;
};

inline void PrintTo(const Technique& technique, std::ostream* out) {
  *out << technique.name;
}

inline std::vector<Technique> techniques() {
  FullyShardedDataParallelOptions by_size{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 20};
  FullyShardedDataParallelOptions recomputed = by_size;
  recomputed.activation_checkpointing = true;
  FullyShardedDataParallelOptions kept = by_size;
  kept.fsdp_version = 2;
  kept.reshard_after_forward = false;
  const ColwiseParallel gathered{.output_layouts = Replicate{}};
  return {
      {.name = "replicate"},
      {.name = "replicate_in_small_buckets",
       .parallel =
           {.replicate_options =
                {.bucket_bytes = 64,
                 .first_bucket_bytes = 64,
                 .gradient_as_bucket_view = true}}},
      {.name = "replicate_a_static_graph",
       .parallel = {.replicate_options = {.static_graph = true}}},
      {.name = "master_weights", .master_weights = true},
      {.name = "activation_checkpointing",
       .parallel =
           {.activation_checkpointing =
                ActivationCheckpointingOptions{
                    .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
                    .min_num_params = 20}}},
      {.name = "zero1",
       .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 1}}},
      {.name = "zero2",
       .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 2}}},
      {.name = "zero3",
       .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 3}}},
      {.name = "fully_sharded", .parallel = {.fully_sharded = by_size}},
      {.name = "fully_sharded_kept_after_forward",
       .parallel = {.fully_sharded = kept}},
      {.name = "fully_sharded_and_recomputed",
       .parallel = {.fully_sharded = recomputed}},
      {.name = "hybrid",
       .parallel = {.replicate = 2, .fully_sharded = by_size},
       .divides_ranks = 2},
      {.name = "tensor",
       .parallel =
           {.parallelize_plan =
                ParallelizePlan{
                    {"blocks.*.linear", gathered}, {"head", gathered}}},
       .axis = Axis::tensor},
      {.name = "context", .axis = Axis::context},
      {.name = "experts", .axis = Axis::expert, .has_experts = true},
      {.name = "experts_of_replicas", .has_experts = true},
      {.name = "ms_amp", .is_ms_amp = true},
      {.name = "float8_attention",
       .float8_attention = Float8Attention::per_head},
  };
}

inline ParityRun run_of(
    const Technique& technique,
    Precision precision,
    int accumulation,
    int num_ranks) {
  ParityRun run{
      .num_ranks = num_ranks,
      .gradient_accumulation_steps = accumulation,
      .has_experts = technique.has_experts};
  run.options.mixed_precision = precision;
  run.options.parallel = technique.parallel;
  run.options.master_weights = technique.master_weights;
  if (technique.axis == Axis::tensor) run.options.parallel.tensor = num_ranks;
  if (technique.axis == Axis::context) run.options.parallel.context = num_ranks;
  if (technique.axis == Axis::expert) run.options.parallel.expert = num_ranks;
  // With gradients of weights in high precision, every sample is scaled by
  // itself on any rank.
  if (precision == Precision::fp8) {
    run.options.fp8_recipe = AORecipeKwargs{
        .config = Float8LinearConfig::from_recipe_name("rowwise_with_gw_hp"),
        .module_filter_func = [](const std::string&, const torch::nn::Module&) {
          return true;
        }};
  }
  if (precision == Precision::fp8 && technique.is_ms_amp)
    run.options.fp8_recipe = MSAMPRecipeKwargs{"O1"};
  if (precision == Precision::fp8)
    run.options.fp8_attention = technique.float8_attention;
  // Avoids an overflow, which would skip a step.
  run.options.grad_scaler.init_scale = 128;
  if (technique.master_weights) {
    run.parameter_dtype =
        precision == Precision::fp16 ? torch::kHalf : torch::kBFloat16;
  }
  return run;
}

/// In 16 bits a mean over fewer samples rounds differently: gradients differ by
/// a few units of 2^-8, times steps and learning rate.
inline double tolerance_of(Precision precision) {
  return precision == Precision::no ? 1e-5 : 1e-2;
}

}  // namespace accelerate::testing
