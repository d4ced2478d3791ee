#include "train/settings/ignored_options.h"

#include "base/text/text.h"
#include "precision/support.h"
#include "track/profiler/operator_recorder.h"

namespace accelerate::detail {

namespace {

template <class Options, class... Field>
bool differs_from_default(const Options& options, Field Options::*... fields) {
  const Options plain;
  return ((options.*fields != plain.*fields) || ...);
}

}  // namespace

std::vector<IgnoredSetting> options_without_effect(
    const ReplicateOptions& options) {
  std::vector<IgnoredSetting> ignored;
  const IgnoredInCode note(ignored);
  const bool has_factors = options.comm_hook == CommHook::power_sgd ||
      options.comm_hook == CommHook::batched_power_sgd;
  note(
      !has_factors &&
          differs_from_default(
              options.power_sgd,
              &PowerSGDOptions::matrix_approximation_rank,
              &PowerSGDOptions::start_power_sgd_iter,
              &PowerSGDOptions::min_compression_rate,
              &PowerSGDOptions::use_error_feedback,
              &PowerSGDOptions::warm_start,
              &PowerSGDOptions::orthogonalization_epsilon,
              &PowerSGDOptions::random_seed),
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
      !autocast_dtype(precision) &&
          differs_from_default(
              options.autocast,
              &AutocastOptions::enabled,
              &AutocastOptions::cache_enabled),
      "autocast",
      in_force);
  const GradScalerOptions& scaler = options.grad_scaler;
  const bool has_numbers = differs_from_default(
      scaler,
      &GradScalerOptions::init_scale,
      &GradScalerOptions::growth_factor,
      &GradScalerOptions::backoff_factor,
      &GradScalerOptions::growth_interval);
  note(
      precision != Precision::fp16 && (!scaler.enabled || has_numbers),
      "grad_scaler",
      in_force);
  note(
      precision == Precision::fp16 && !scaler.enabled && has_numbers,
      "grad_scaler",
      "enabled is false");
  if (options.profile) check_profile(*options.profile);
  return ignored;
}

}  // namespace accelerate::detail
