#include "planning/layout/plan_inputs.h"

#include <algorithm>

namespace accelerate::detail {

std::int64_t samples_of_step(const LayoutPlanOptions& options) {
  return std::max<std::int64_t>(
      1, options.batch_tokens / options.sequence_length);
}

double tokens_of_step(const LayoutPlanOptions& options) {
  return static_cast<double>(samples_of_step(options)) *
      static_cast<double>(options.sequence_length);
}

std::uint64_t usable_bytes(const LayoutPlanOptions& options) {
  return static_cast<std::uint64_t>(
      static_cast<double>(options.cluster->memory_bytes) *
      options.usable_memory);
}

double product_speed(const LayoutPlanOptions& options) {
  const ClusterSpeeds& cluster = *options.cluster;
  if (options.precision != FloatType::fp32) return cluster.flops;
  return cluster.fp32_flops > 0 ? cluster.fp32_flops : cluster.flops / 2;
}

}  // namespace accelerate::detail
