#include "trackers/media/histogram.h"

#include <algorithm>
#include <cmath>

namespace accelerate::detail {

TrackedHistogram histogram_of(
    std::span<const double> values,
    std::int64_t num_bins) {
  const auto size = static_cast<std::size_t>(num_bins);
  TrackedHistogram histogram;
  histogram.counts.assign(size, 0);
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const bool is_first = histogram.num++ == 0;
    histogram.min = is_first ? value : std::min(histogram.min, value);
    histogram.max = is_first ? value : std::max(histogram.max, value);
    histogram.sum += value;
    histogram.sum_squares += value * value;
  }
  // The difference of two doubles can overflow a double.
  long double least = histogram.min;
  long double width = histogram.max - least;
  if (width == 0) {
    least -= 0.5;
    width = 1;
  }
  for (std::size_t i = 0; i <= size; ++i) {
    histogram.edges.push_back(static_cast<double>(
        least + width * static_cast<long double>(i) / num_bins));
  }
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const long double bin = (value - least) / width * num_bins;
    histogram.counts[std::min(size - 1, static_cast<std::size_t>(bin))] += 1;
  }
  return histogram;
}

}  // namespace accelerate::detail
