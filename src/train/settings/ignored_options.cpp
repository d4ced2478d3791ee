#include "train/settings/ignored_options.h"

#include <tuple>

#include "base/text/text.h"
#include "precision/support.h"
#include "track/profiler/operator_recorder.h"

namespace accelerate::detail {

namespace {

bool differs_from_default(const PowerSGDOptions& options) {
  const auto all = [](const PowerSGDOptions& o) {
    return std::tuple(
        o.matrix_approximation_rank,
        o.start_power_sgd_iter,
        o.min_compression_rate,
        o.use_error_feedback,
        o.warm_start,
        o.orthogonalization_epsilon,
        o.random_seed);
  };
  return all(options) != all(PowerSGDOptions());
}

bool differs_from_default(const AutocastOptions& options) {
  return !options.enabled || options.cache_enabled;
}

// Whether a factor or an interval of the scale was given.
bool has_numbers(const GradScalerOptions& options) {
  const auto all = [](const GradScalerOptions& o) {
    return std::tuple(
        o.init_scale, o.growth_factor, o.backoff_factor, o.growth_interval);
  };
  return all(options) != all(GradScalerOptions());
}

bool differs_from_default(const GradScalerOptions& options) {
  return !options.enabled || has_numbers(options);
}

}  // namespace

std::vector<IgnoredSetting> options_without_effect(
    const ReplicateOptions& options) {
  std::vector<IgnoredSetting> ignored;
  const IgnoredInCode note(ignored);
  const bool has_factors = options.comm_hook == CommHook::power_sgd ||
      options.comm_hook == CommHook::batched_power_sgd;
  note(
      !has_factors && differs_from_default(options.power_sgd),
      "replicate_options.power_sgd",
      "comm_hook is not PowerSGD");
  return ignored;
}

std::vector<IgnoredSetting> options_without_effect(
    const AcceleratorOptions& options,
    Precision precision) {
  std::vector<IgnoredSetting> ignored =
      options_without_effect(options.parallel.replicate_options);
  const IgnoredInCode note(ignored);
  const std::string in_force =
      format("mixed_precision is {}", name_of(precision));
  note(
      !autocast_dtype(precision) && differs_from_default(options.autocast),
      "autocast",
      in_force);
  const GradScalerOptions& scaler = options.grad_scaler;
  note(
      precision != Precision::fp16 && differs_from_default(scaler),
      "grad_scaler",
      in_force);
  note(
      precision == Precision::fp16 && !scaler.enabled && has_numbers(scaler),
      "grad_scaler",
      "enabled is false");
  if (options.profile) check_profile(*options.profile);
  return ignored;
}

}  // namespace accelerate::detail
