#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// Which points of a figure are shown, and how.
struct CurveRequest {
  std::int64_t from = std::numeric_limits<std::int64_t>::min();
  std::int64_t to = std::numeric_limits<std::int64_t>::max();  ///< inclusive
  /// Columns of pixels: at most twice as many points are left, and two more.
  std::size_t num_columns = 600;
  /// 0 shows the values as they are; towards 1, averages over more of them.
  double smoothing = 0;
};

/// Exponential moving average without the bias of its beginning: the weight of
/// a value shrinks by `smoothing` with each later one. Values that are not
/// finite stay as they are and are not part of averages.
class Smoother {
 public:
  explicit Smoother(double smoothing) : smoothing_(smoothing) {}
  double add(double value);

 private:
  double smoothing_;
  double sum_ = 0;
  double weight_ = 0;
};

/// The points from step to step, smoothed over all before them. If they are
/// more than fit, the least and the greatest value of each column of steps are
/// left, in their order, with the first and the last point: the curve looks the
/// same. The points are in the order of their steps.
std::vector<RunRecord::Point> curve_of(
    const std::vector<RunRecord::Point>& points,
    const CurveRequest& request);

}  // namespace accelerate::cli
