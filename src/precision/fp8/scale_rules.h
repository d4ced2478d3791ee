#pragma once

#include <cstdint>
#include <vector>

#include "precision/fp8/kernels/cast_kernels.h"

namespace accelerate::detail {

/// The factor that brings a largest absolute value to the format's, as torchao
/// computes it: in fp64, with `amax` at least 1e-12, then rounded to fp32. 0 for
/// infinity, NaN for NaN. `power_of_2`: rounded down to a power of two, with
/// which scaling is exact.
float scale_of_amax(double amax, Float8Format type, bool power_of_2);

/// The E8M0 code of a block's scale as TransformerEngine computes it: of the
/// smallest power of two, 2^(code - 127), by which `amax` can be divided without
/// exceeding the format's largest value. 0xff for NaN, 0xfe for infinity.
std::uint8_t e8m0_of_amax(float amax, Float8Format type);

/// What a block with this E8M0 code is multiplied by: 2^(127 - code).
float scale_of_e8m0(std::uint8_t code);

/// What the largest value of a step says about the scale that it was cast with.
enum class ScaleFit {
  good,
  saturates,  ///< it was cut off to less than half
  vanishes,   ///< it became 0, and all others with it
  not_finite,
};

ScaleFit fit_of(float amax, float scale, Float8Format type);

/// The smallest value above 0 of a format.
float smallest_value(Float8Format type);

struct DelayedScaleOptions {
  std::int64_t history_len = 1024;
  /// The largest of the history, rather than the newest value.
  bool uses_largest = false;
  /// Scales are divided by 2^margin.
  std::int64_t margin = 0;
  /// Steps from one new scale to the next.
  std::int64_t interval = 1;
};

/// The scale of one tensor by TransformerEngine's delayed scaling: that of a
/// step follows from the largest absolute values of earlier steps.
class DelayedScale {
 public:
  DelayedScale(Float8Format type, const DelayedScaleOptions& options);

  [[nodiscard]] float scale() const { return scale_; }
  [[nodiscard]] Float8Format format() const { return format_; }

  /// Adds the largest absolute value of a step, and computes the scale of the
  /// next. A value of 0, infinite or NaN leaves the scale as it is.
  void update(float amax);

  /// The first element is the place of the current step, 0; the last element is
  /// the newest.
  [[nodiscard]] const std::vector<float>& history() const { return history_; }
  [[nodiscard]] std::int64_t num_updates() const { return num_updates_; }

  /// How the scale of the last step fitted.
  [[nodiscard]] ScaleFit fit() const { return fit_; }
  /// The steps in a row up to the last whose scale did not fit, all in the way
  /// that fit() says.
  [[nodiscard]] std::int64_t num_misfits() const { return num_misfits_; }

  /// Restores what another object had. A longer or shorter history keeps the
  /// newest values.
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
