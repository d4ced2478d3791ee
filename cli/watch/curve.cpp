#include "cli/watch/curve.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace accelerate::cli {

namespace {

using Point = RunRecord::Point;

// Keeps the least and the greatest value of a column, in step order. If all
// values are NaN, keeps one.
void add_extremes(std::span<const Point> column, std::vector<Point>& kept) {
  const Point* least = nullptr;
  const Point* greatest = nullptr;
  for (const Point& point : column) {
    if (std::isnan(point.value)) continue;
    if (least == nullptr || point.value < least->value) least = &point;
    if (greatest == nullptr || point.value > greatest->value) greatest = &point;
  }
  if (least == nullptr) {
    kept.push_back(column.front());
    return;
  }
  kept.push_back(*std::min(least, greatest));
  if (least != greatest) kept.push_back(*std::max(least, greatest));
}

std::vector<Point> thin(std::span<const Point> points, std::size_t columns) {
  if (points.size() <= 2 * columns + 2) return {points.begin(), points.end()};
  std::vector<Point> kept{points.front()};
  const std::span<const Point> inner = points.subspan(1, points.size() - 2);
  const auto first = static_cast<double>(inner.front().step);
  const double per_step = static_cast<double>(columns) /
      (static_cast<double>(inner.back().step) - first + 1);
  const auto column_of = [&](const Point& point) {
    return static_cast<std::size_t>(
        (static_cast<double>(point.step) - first) * per_step);
  };
  for (std::size_t begin = 0; begin < inner.size();) {
    const std::size_t column = column_of(inner[begin]);
    std::size_t end = begin + 1;
    while (end < inner.size() && column_of(inner[end]) == column) ++end;
    add_extremes(inner.subspan(begin, end - begin), kept);
    begin = end;
  }
  kept.push_back(points.back());
  return kept;
}

}  // namespace

double Smoother::add(double value) {
  if (!std::isfinite(value)) return value;
  sum_ = smoothing_ * sum_ + (1 - smoothing_) * value;
  weight_ = smoothing_ * weight_ + (1 - smoothing_);
  return sum_ / weight_;
}

std::vector<Point> curve_of(
    const std::vector<Point>& points,
    const CurveRequest& request) {
  const std::size_t columns = std::max<std::size_t>(request.num_columns, 1);
  const auto begin = std::partition_point(
      points.begin(), points.end(), [&](const Point& point) {
        return point.step < request.from;
      });
  const auto end =
      std::partition_point(begin, points.end(), [&](const Point& point) {
        return point.step <= request.to;
      });
  if (begin == end) return {};
  if (request.smoothing <= 0) return thin({begin, end}, columns);
  Smoother smoother(std::min(request.smoothing, 0.9999));
  for (auto point = points.begin(); point != begin; ++point)
    smoother.add(point->value);
  std::vector<Point> smooth(begin, end);
  for (Point& point : smooth) point.value = smoother.add(point.value);
  return thin(smooth, columns);
}

}  // namespace accelerate::cli
