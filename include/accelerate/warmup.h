#pragma once

#include <cstdint>
#include <optional>

#include <accelerate/export.h>
#include <accelerate/lr_scheduler.h>

namespace accelerate::optim {

/// Factors for LambdaLR that rise from 0 to 1 in num_warmup_steps, and then
/// change as their names say, as in Hugging Face Transformers.
///
///     optim::LambdaLR schedule(adamw, optim::linear_with_warmup(100, 1000));
ACCELERATE_API LRLambda constant_with_warmup(std::int64_t num_warmup_steps);
/// Falls to 0 at num_training_steps.
ACCELERATE_API LRLambda linear_with_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps);
/// `num_cycles` waves; 0.5 falls to 0 once.
ACCELERATE_API LRLambda cosine_with_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps,
    double num_cycles = 0.5);
/// Falls `num_cycles` times from 1 to 0.
ACCELERATE_API LRLambda cosine_with_restarts_and_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps,
    int num_cycles = 1);

struct PolynomialWithWarmupOptions {
  /// Steps in which it rises from 0.
  std::int64_t num_warmup_steps = 0;
  /// All steps, with those of the warm-up.
  std::int64_t num_training_steps = 1;
  /// The optimizer's learning rate, above lr_end. Must be the real one: factors
  /// are computed from the ratio of the two.
  double lr_init = 1e-3;
  /// The learning rate at the end.
  double lr_end = 1e-7;
  /// 1: a line; larger: falls faster at first.
  double power = 1.0;
};
/// Falls to `lr_end` by a power of the remaining fraction of the steps.
ACCELERATE_API LRLambda
polynomial_with_warmup(const PolynomialWithWarmupOptions& options);

/// `timescale` unset: num_warmup_steps, or 10,000 without a warm-up.
ACCELERATE_API LRLambda inverse_sqrt_with_warmup(
    std::int64_t num_warmup_steps,
    std::optional<std::int64_t> timescale = std::nullopt);

/// The shape of a warm-up or decay of warmup_stable_decay(): a line (`linear`),
/// half a cosine (`cosine`), or 1 less the root of the fraction
/// (`one_minus_sqrt`).
enum class RampShape { linear, cosine, one_minus_sqrt };
struct WarmupStableDecayOptions {
  /// Steps in which it rises.
  std::int64_t num_warmup_steps = 0;
  /// Steps in which it stays at 1.
  std::int64_t num_stable_steps = 0;
  /// Steps in which it falls.
  std::int64_t num_decay_steps = 0;
  /// The shape of the rise.
  RampShape warmup_type = RampShape::linear;
  /// The shape of the fall.
  RampShape decay_type = RampShape::cosine;
  /// The factor where the warm-up begins, and from the end of the decay on.
  double min_lr_ratio = 0;
  /// Number of waves of a cosine decay; 0.5 falls once.
  double num_cycles = 0.5;
};
/// Rises, stays at 1, and falls.
ACCELERATE_API LRLambda
warmup_stable_decay(const WarmupStableDecayOptions& options);

}  // namespace accelerate::optim
