#pragma once

#include <span>
#include <vector>

namespace accelerate::detail {

/// A sample's score, whether it is of the class, and its weight.
struct ScoredSample {
  double score = 0;
  bool is_positive = false;
  double weight = 1;
};

/// The area under the curve of samples in any order: the weight of pairs in
/// which the sample of the class has the higher score, half of those with equal
/// ones, by the weight of all pairs (Mann and Whitney 1947). Not a number if
/// there are no pairs.
double roc_area(std::vector<ScoredSample> samples);

/// The area from the weights in bins of ascending scores; samples of a bin
/// count as equal.
double roc_area_of_bins(
    std::span<const double> positives,
    std::span<const double> negatives);

}  // namespace accelerate::detail
