#include "metrics/roc_area.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace accelerate::detail {

double roc_area_of_bins(
    std::span<const double> positives,
    std::span<const double> negatives) {
  double area = 0, all_positives = 0, negatives_below = 0;
  for (std::size_t i = 0; i < positives.size(); ++i) {
    area += positives[i] * (negatives_below + negatives[i] / 2);
    all_positives += positives[i];
    negatives_below += negatives[i];
  }
  if (all_positives == 0 || negatives_below == 0)
    return std::numeric_limits<double>::quiet_NaN();
  return area / (all_positives * negatives_below);
}

double roc_area(std::vector<ScoredSample> samples) {
  std::ranges::sort(samples, {}, &ScoredSample::score);
  std::vector<double> positives, negatives;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i == 0 || samples[i].score != samples[i - 1].score) {
      positives.push_back(0);
      negatives.push_back(0);
    }
    (samples[i].is_positive ? positives : negatives).back() +=
        samples[i].weight;
  }
  return roc_area_of_bins(positives, negatives);
}

}  // namespace accelerate::detail
