#include "parallel/shard/shard_options.h"

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

}  // namespace

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
  options.offloads_shards = request.cpu_offload;
  options.param_dtype = scalar_type(precision.param_dtype);
  options.reduce_dtype = scalar_type(precision.reduce_dtype);
  options.buffer_dtype = scalar_type(precision.buffer_dtype);
  options.output_dtype = scalar_type(precision.output_dtype);
  return options;
}

}  // namespace accelerate::detail
