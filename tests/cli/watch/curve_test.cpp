#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/watch/curve.h"

namespace accelerate::cli {
namespace curve_test {

using ::testing::ElementsAre;
using Point = RunRecord::Point;

std::vector<Point> points(const std::vector<double>& values) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto step = static_cast<std::int64_t>(i);
    points.push_back({step, static_cast<double>(i), values[i], 1});
  }
  return points;
}

std::vector<double> values_of(const std::vector<Point>& points) {
  std::vector<double> values;
  for (const Point& point : points) values.push_back(point.value);
  return values;
}

std::vector<std::int64_t> steps_of(const std::vector<Point>& points) {
  std::vector<std::int64_t> steps;
  for (const Point& point : points) steps.push_back(point.step);
  return steps;
}

TEST(Curve, KeepsAllPointsThatFit) {
  const auto all = points({3, 1, 2, 5});
  EXPECT_EQ(curve_of(all, {.num_columns = 1}), all);
}

TEST(Curve, KeepsTheExtremesOfEachColumnInTheirOrder) {
  // Two columns of four points between the first and the last.
  const auto all = points({9, 1, 5, 0, 2, 7, 3, 4, 8, 6});
  const auto kept = curve_of(all, {.num_columns = 2});
  EXPECT_THAT(steps_of(kept), ElementsAre(0, 2, 3, 6, 8, 9));
  EXPECT_THAT(values_of(kept), ElementsAre(9, 5, 0, 3, 8, 6));
}

TEST(Curve, KeepsSpikesOfLongRunsAndNeverMoreThanFit) {
  std::vector<double> values(100000, 1.0);
  values[54321] = 50;
  values[777] = -50;
  const auto kept = curve_of(points(values), {.num_columns = 300});
  EXPECT_LE(kept.size(), 602U);
  EXPECT_THAT(values_of(kept), ::testing::Contains(50));
  EXPECT_THAT(values_of(kept), ::testing::Contains(-50));
  const auto steps = steps_of(kept);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.front(), 0);
  EXPECT_EQ(steps.back(), 99999);
}

TEST(Curve, HasTheStepsThatAreAskedFor) {
  const auto all = points({0, 1, 2, 3, 4});
  EXPECT_THAT(
      steps_of(curve_of(all, {.from = 1, .to = 3})), ElementsAre(1, 2, 3));
  EXPECT_TRUE(curve_of(all, {.from = 9}).empty());
  EXPECT_TRUE(curve_of({}, {}).empty());
}

TEST(Curve, IsSmoothedWithoutBiasByAllThatCameBefore) {
  const auto all = points({4, 8, 0});
  // (4 / 4 + 8 / 2) / (1 / 4 + 1 / 2), and so on.
  const auto smooth = curve_of(all, {.smoothing = 0.5});
  EXPECT_DOUBLE_EQ(smooth[0].value, 4);
  EXPECT_DOUBLE_EQ(smooth[1].value, 20.0 / 3);
  EXPECT_DOUBLE_EQ(smooth[2].value, 20.0 / 7);
  const auto end = curve_of(all, {.from = 2, .smoothing = 0.5});
  ASSERT_EQ(end.size(), 1U);
  EXPECT_DOUBLE_EQ(end[0].value, 20.0 / 7);
}

TEST(Curve, LeavesWhatIsNotFiniteOutOfAverages) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto smooth =
      curve_of(points({4, NAN, infinity, 8}), {.smoothing = 0.5});
  EXPECT_TRUE(std::isnan(smooth[1].value));
  EXPECT_EQ(smooth[2].value, infinity);
  EXPECT_DOUBLE_EQ(smooth[3].value, 20.0 / 3);
}

}  // namespace curve_test
}  // namespace accelerate::cli
