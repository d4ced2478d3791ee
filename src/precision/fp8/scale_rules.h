#pragma once

#include <cstdint>
#include <vector>

#include "precision/fp8/kernels/cast_kernels.h"

namespace accelerate::detail {

/// Returns the factor that maps `amax` to the format's largest value, as
/// torchao computes it: in fp64, with `amax` at least 1e-12, then rounded to
/// fp32. 0 for infinity, NaN for NaN. `power_of_2`: rounds down to a power of
/// two, which makes scaling exact.
float scale_of_amax(double amax, Float8Format type, bool power_of_2);

/// Returns the E8M0 code of a block's scale as TransformerEngine computes it:
/// that of the smallest power of two, 2^(code - 127), by which `amax` can be
/// divided without exceeding the format's largest value. 0xff for NaN, 0xfe for
/// infinity.
std::uint8_t e8m0_of_amax(float amax, Float8Format type);

/// Returns the factor of a block with this E8M0 code: 2^(127 - code).
float scale_of_e8m0(std::uint8_t code);

/// How well a scale fitted the amax of the step that was cast with it.
enum class ScaleFit {
  good,
  saturates,  ///< it was clipped to less than half
  vanishes,   ///< it became 0, and all others with it
  not_finite,
};

ScaleFit fit_of(float amax, float scale, Float8Format type);

/// Returns a format's smallest value above 0.
float smallest_value(Float8Format type);

struct DelayedScaleOptions {
  std::int64_t history_len = 1024;
  /// True to use the largest value of the history rather than the newest one.
  bool uses_largest = false;
  /// Scales are divided by 2^margin.
  std::int64_t margin = 0;
  /// Number of steps between new scales.
  std::int64_t interval = 1;
};

/// The scale of one tensor by TransformerEngine's delayed scaling: derived in
/// each step from the amaxes of earlier steps.
class DelayedScale {
 public:
  DelayedScale(Float8Format type, const DelayedScaleOptions& options);

  [[nodiscard]] float scale() const { return scale_; }
  [[nodiscard]] Float8Format format() const { return format_; }

  /// Adds the amax of a step, and computes the scale of the next. The scale
  /// stays unchanged if the amax to derive it from is 0, infinite or NaN.
  void update(float amax);

  /// The first element is the current step's place, 0; the last element is the
  /// newest.
  [[nodiscard]] const std::vector<float>& history() const { return history_; }
  [[nodiscard]] std::int64_t num_updates() const { return num_updates_; }

  /// How the scale of the last step fitted.
  [[nodiscard]] ScaleFit fit() const { return fit_; }
  /// Number of consecutive steps, up to the last one, whose scale misfitted in
  /// the way that fit() says.
  [[nodiscard]] std::int64_t num_misfits() const { return num_misfits_; }

  /// Restores another object's state. If the history's length differs, the
  /// newest values are kept.
  void restore(
      float scale,
      const std::vector<float>& history,
      std::int64_t num_updates);

 private:
  Float8Format format_;
  DelayedScaleOptions options_;
  float scale_ = 1;
  std::vector<float> history_;
  std::int64_t num_updates_ = 0;
  ScaleFit fit_ = ScaleFit::good;
  std::int64_t num_misfits_ = 0;
};

}  // namespace accelerate::detail
