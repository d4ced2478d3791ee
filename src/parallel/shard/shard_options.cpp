#include "parallel/shard/shard_options.h"

#include <string_view>

namespace accelerate::detail {

namespace {

std::optional<at::ScalarType> scalar_type(std::optional<FloatType> type) {
  if (!type) return std::nullopt;
  switch (*type) {
    case FloatType::fp32:
      return at::kFloat;
    case FloatType::fp16:
      return at::kHalf;
    case FloatType::bf16:
      return at::kBFloat16;
  }
  return std::nullopt;
}

std::optional<std::string> complaint_about_hooks(
    const ReplicateOptions& options,
    bool has_replicas) {
  if (options.bucket_hook || options.comm_wrapper != CommWrapper::none ||
      options.comm_hook == CommHook::power_sgd ||
      options.comm_hook == CommHook::batched_power_sgd) {
    return "[parallel] the model is sharded, so its gradients are not averaged "
           "in buckets; leave bucket_hook, comm_wrapper and PowerSGD out, or "
           "use comm_hook fp16 or bf16 between replicas of the shards";
  }
  if (options.comm_hook != CommHook::none && !has_replicas) {
    return "[parallel] a comm_hook compresses what replicas exchange, but the "
           "model is sharded over all ranks; leave it out, set reduce_dtype in "
           "mixed_precision_policy, or set replicate above 1";
  }
  return std::nullopt;
}

std::vector<IgnoredSetting> ignored_of(
    const ReplicateOptions& options,
    bool has_replicas) {
  const ReplicateOptions defaults;
  std::vector<IgnoredSetting> ignored;
  const IgnoredInCode note(ignored);
  note(
      !has_replicas && options.bucket_bytes != defaults.bucket_bytes,
      "bucket_bytes");
  note(
      options.first_bucket_bytes != defaults.first_bucket_bytes,
      "first_bucket_bytes");
  note(options.find_unused_parameters, "find_unused_parameters");
  note(options.static_graph, "static_graph");
  note(options.gradient_as_bucket_view, "gradient_as_bucket_view");
  return ignored;
}

}  // namespace

ShardedReplicas read_replicate_options(
    const ReplicateOptions& options,
    bool has_replicas) {
  ShardedReplicas replicas;
  if (options.comm_hook == CommHook::fp16) replicas.dtype = at::kHalf;
  if (options.comm_hook == CommHook::bf16) replicas.dtype = at::kBFloat16;
  replicas.ignored = ignored_of(options, has_replicas);
  replicas.complaint = complaint_about_hooks(options, has_replicas);
  return replicas;
}

ShardOptions make_shard_options(
    const ShardingRequest& request,
    const MixedPrecisionPolicy& precision) {
  ShardOptions options;
  options.units = request.units;
  options.ignored_modules = request.ignored_modules;
  options.shards_parameters = request.shard_parameters;
  options.reshards_after_forward = request.reshard_after_forward;
  options.reshard_group_size = request.reshard_group_size;
  options.reduces_every_backward = request.reduce_every_backward;
  options.prefetches_forward = request.prefetch_forward;
  options.prefetches_backward = request.prefetch_backward;
  options.prefetch_depth = static_cast<std::size_t>(request.prefetch_depth);
  options.prefetches_after_gradients = request.prefetch_after_gradients;
  options.offloads_shards = request.cpu_offload || request.disk.has_value();
  options.disk = request.disk;
  options.param_dtype = scalar_type(precision.param_dtype);
  options.reduce_dtype = scalar_type(precision.reduce_dtype);
  options.buffer_dtype = scalar_type(precision.buffer_dtype);
  options.output_dtype = scalar_type(precision.output_dtype);
  options.casts_inputs = precision.cast_root_forward_inputs.value_or(true);
  return options;
}

}  // namespace accelerate::detail
