#include <algorithm>
#include <cmath>
#include <numbers>

#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/text/text.h"

namespace accelerate::optim {

namespace {

using std::numbers::pi;

double ratio(std::int64_t dividend, std::int64_t divisor) {
  return static_cast<double>(dividend) /
      static_cast<double>(std::max<std::int64_t>(1, divisor));
}

// `after` receives the progress since the warm-up: 0 at its end, 1 at the last
// step, more beyond.
template <class After>
LRLambda warm_up(std::int64_t warmup, std::int64_t training, After after) {
  return [=](std::int64_t step) {
    if (step < warmup) return ratio(step, warmup);
    return static_cast<double>(after(ratio(step - warmup, training - warmup)));
  };
}

double ramp_up(RampShape shape, double progress) {
  switch (shape) {
    case RampShape::linear:
      return progress;
    case RampShape::cosine:
      return 0.5 * (1.0 - std::cos(pi * progress));
    case RampShape::one_minus_sqrt:
      return 1.0 - std::sqrt(1.0 - progress);
  }
  return progress;
}

double ramp_down(RampShape shape, double progress, double num_cycles) {
  switch (shape) {
    case RampShape::linear:
      return 1.0 - progress;
    case RampShape::cosine:
      return 0.5 * (1.0 + std::cos(pi * num_cycles * 2.0 * progress));
    case RampShape::one_minus_sqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 1.0 - progress;
}

}  // namespace

LRLambda constant_with_warmup(std::int64_t num_warmup_steps) {
  return warm_up(
      num_warmup_steps, num_warmup_steps, [](double) { return 1.0; });
}

LRLambda linear_with_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps) {
  return warm_up(num_warmup_steps, num_training_steps, [](double progress) {
    return std::max(0.0, 1.0 - progress);
  });
}

LRLambda cosine_with_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps,
    double num_cycles) {
  return warm_up(
      num_warmup_steps, num_training_steps, [num_cycles](double progress) {
        return std::max(
            0.0, 0.5 * (1.0 + std::cos(pi * num_cycles * 2.0 * progress)));
      });
}

LRLambda cosine_with_restarts_and_warmup(
    std::int64_t num_warmup_steps,
    std::int64_t num_training_steps,
    int num_cycles) {
  return warm_up(
      num_warmup_steps, num_training_steps, [num_cycles](double progress) {
        if (progress >= 1.0) return 0.0;
        return std::max(
            0.0,
            0.5 * (1.0 + std::cos(pi * std::fmod(num_cycles * progress, 1.0))));
      });
}

LRLambda polynomial_with_warmup(const PolynomialWithWarmupOptions& options) {
  if (!(options.lr_init > options.lr_end)) {
    throw ConfigError(accelerate::detail::format(
        "[optim] polynomial_with_warmup falls from lr_init {} to lr_end {}; "
        "lr_init must be the larger",
        options.lr_init,
        options.lr_end));
  }
  return warm_up(
      options.num_warmup_steps,
      options.num_training_steps,
      [options](double progress) {
        const double end = options.lr_end / options.lr_init;
        if (progress > 1.0) return end;
        return (1.0 - end) * std::pow(1.0 - progress, options.power) + end;
      });
}

LRLambda inverse_sqrt_with_warmup(
    std::int64_t num_warmup_steps,
    std::optional<std::int64_t> timescale) {
  const std::int64_t scale =
      timescale.value_or(num_warmup_steps > 0 ? num_warmup_steps : 10000);
  return [=](std::int64_t step) {
    if (step < num_warmup_steps) return ratio(step, num_warmup_steps);
    return 1.0 / std::sqrt(ratio(step + scale - num_warmup_steps, scale));
  };
}

LRLambda warmup_stable_decay(const WarmupStableDecayOptions& options) {
  return [options](std::int64_t step) {
    const auto above_least = [&](double factor) {
      return std::max(
          0.0, factor * (1.0 - options.min_lr_ratio) + options.min_lr_ratio);
    };
    if (step < options.num_warmup_steps) {
      return above_least(
          ramp_up(options.warmup_type, ratio(step, options.num_warmup_steps)));
    }
    const std::int64_t stable_end =
        options.num_warmup_steps + options.num_stable_steps;
    if (step < stable_end) return 1.0;
    if (step < stable_end + options.num_decay_steps) {
      return above_least(ramp_down(
          options.decay_type,
          ratio(step - stable_end, options.num_decay_steps),
          options.num_cycles));
    }
    return options.min_lr_ratio;
  };
}

}  // namespace accelerate::optim
