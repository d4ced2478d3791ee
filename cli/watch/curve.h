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
  /// Columns of pixels; keeps at most two points per column, plus two.
  std::size_t num_columns = 600;
  /// 0 shows the values unchanged; values closer to 1 average over more of
  /// them.
  double smoothing = 0;
};

/// Exponential moving average, corrected for the bias at its beginning: the
/// weight of a value shrinks by the factor `smoothing` with each later one.
/// Values that are not finite stay as they are and are left out of averages.
class Smoother {
 public:
  explicit Smoother(double smoothing) : smoothing_(smoothing) {}
  double add(double value);

 private:
  double smoothing_;
  double sum_ = 0;
  double weight_ = 0;
};

/// The requested points, smoothed over all before them. If there are too many,
/// keeps the least and the greatest value of each column of steps, in order,
/// plus the first and the last point: the curve looks the same. The points are
/// in step order.
std::vector<RunRecord::Point> curve_of(
    const std::vector<RunRecord::Point>& points,
    const CurveRequest& request);

}  // namespace accelerate::cli
