#include "precision/fp8/scale_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace accelerate::detail {

namespace {

constexpr double kSmallestAmax = 1e-12;
constexpr std::uint8_t kLargestE8m0 = 0xfe;
constexpr int kE8m0Bias = 127;

// Returns NaN if any value is NaN.
float largest_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

float scale_of_amax(double amax, Float8Format type, bool power_of_2) {
  if (std::isnan(amax)) return std::numeric_limits<float>::quiet_NaN();
  double scale =
      static_cast<double>(largest_value(type)) / std::max(amax, kSmallestAmax);
  if (power_of_2 && scale > 0) scale = std::ldexp(1.0, std::ilogb(scale));
  return static_cast<float>(scale);
}

std::uint8_t e8m0_of_amax(float amax, Float8Format type) {
  if (std::isnan(amax)) return 0xff;
  if (std::isinf(amax)) return kLargestE8m0;
  // Computes the quotient's exponent from the bits of both; subnormal numbers
  // give an exponent too small for a code, as it should be.
  constexpr std::uint32_t kMantissa = 0x7fffff;
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  const auto largest = std::bit_cast<std::uint32_t>(largest_value(type));
  const bool is_above = (bits & kMantissa) > (largest & kMantissa);
  const int exponent = static_cast<int>(bits >> 23) -
      static_cast<int>(largest >> 23) + (is_above ? 1 : 0);
  return static_cast<std::uint8_t>(
      std::clamp(exponent + kE8m0Bias, 0, static_cast<int>(kLargestE8m0)));
}

float scale_of_e8m0(std::uint8_t code) {
  if (code == 0xff) return std::numeric_limits<float>::quiet_NaN();
  // 2^-127, which is subnormal.
  if (code == kLargestE8m0) return std::bit_cast<float>(1U << 22);
  return std::bit_cast<float>(
      static_cast<std::uint32_t>(2 * kE8m0Bias - code) << 23);
}

float smallest_value(Float8Format type) {
  switch (type) {
    case Float8Format::e4m3fn:
      return 0x1p-9F;
    case Float8Format::e4m3fnuz:
      return 0x1p-10F;
    case Float8Format::e5m2:
      return 0x1p-16F;
    case Float8Format::e5m2fnuz:
      return 0x1p-17F;
  }
  return 0;
}

ScaleFit fit_of(float amax, float scale, Float8Format type) {
  if (!std::isfinite(amax)) return ScaleFit::not_finite;
  const float scaled = amax * scale;
  if (scaled > 2 * largest_value(type)) return ScaleFit::saturates;
  // Half of the smallest value rounds to even, that is, to 0.
  return amax > 0 && scaled <= smallest_value(type) / 2 ? ScaleFit::vanishes
                                                        : ScaleFit::good;
}

DelayedScale::DelayedScale(
    Float8Format type,
    const DelayedScaleOptions& options)
    : format_(type),
      options_(options),
      history_(static_cast<std::size_t>(options.history_len), 0.0F) {}

void DelayedScale::update(float amax) {
  const ScaleFit fit = fit_of(amax, scale_, format_);
  num_misfits_ = fit == ScaleFit::good ? 0 : fit == fit_ ? num_misfits_ + 1 : 1;
  fit_ = fit;
  history_.front() = amax;
  const bool is_due = ++num_updates_ % options_.interval == 0;
  const float chosen = options_.uses_largest ? largest_of(history_) : amax;
  if (is_due && std::isfinite(chosen) && chosen > 0) {
    const float scale = std::ldexp(
        largest_value(format_) / chosen, -static_cast<int>(options_.margin));
    scale_ = std::isinf(scale) ? std::numeric_limits<float>::max() : scale;
  }
  std::rotate(history_.begin(), history_.begin() + 1, history_.end());
  history_.front() = 0;
}

void DelayedScale::restore(
    float scale,
    const std::vector<float>& history,
    std::int64_t num_updates) {
  scale_ = scale;
  num_updates_ = num_updates;
  std::ranges::fill(history_, 0.0F);
  // The first place belongs to the current step, so it is not copied.
  const std::size_t count =
      std::min(history.empty() ? 0 : history.size() - 1, history_.size() - 1);
  std::copy_n(
      history.end() - static_cast<std::ptrdiff_t>(count),
      count,
      history_.end() - static_cast<std::ptrdiff_t>(count));
}

}  // namespace accelerate::detail
