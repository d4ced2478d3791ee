#include "trackers/svg/svg_figure.h"

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/media/histogram.h"

namespace accelerate {
namespace {
namespace svg_figure_test {

using detail::SvgFigure;
using detail::SvgSeries;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST(SvgFigure, PutsPointsWhereTheirValuesAre) {
  SvgFigure figure{.width = 180, .height = 180};
  figure.series = {{SvgSeries::Kind::line, "a", {0, 1}, {0, 1}}};
  // The plot is 100 by 100, with a twentieth of the range above the largest
  // value.
  EXPECT_THAT(
      detail::svg_of(figure),
      HasSubstr("points=\"64.00,132.00 164.00,36.76\""));
}

TEST(SvgFigure, InterruptsLinesWhereValuesAreNotFinite) {
  SvgFigure figure;
  figure.series = {{SvgSeries::Kind::line, "", {0, 1, 2, 3}, {0, kNan, 2, 3}}};
  const std::string svg = detail::svg_of(figure);
  EXPECT_EQ(count(svg, "<polyline"), 2U);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SvgFigure, DrawsPointsBarsTextsAndLegend) {
  SvgFigure figure{.title = "a < b & \"c\"", .x_label = "x", .y_label = "y"};
  figure.series = {
      {SvgSeries::Kind::scatter, "dots", {0, 1, 2}, {1, 2, 3}},
      {SvgSeries::Kind::bar, "bars", {0, 1}, {1, -2}}};
  const std::string svg = detail::svg_of(figure);
  EXPECT_EQ(count(svg, "<circle"), 3U);
  EXPECT_EQ(count(svg, "fill-opacity=\"0.8\""), 2U);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr(">dots</text>"));
  EXPECT_THAT(svg, HasSubstr(">bars</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("height=\"-")));
}

TEST(SvgFigure, DrawsFiguresWithoutPoints) {
  EXPECT_THAT(detail::svg_of({}), HasSubstr("</svg>"));
  SvgFigure figure;
  figure.series = {{SvgSeries::Kind::line, "", {kNan}, {kNan}}};
  EXPECT_THAT(detail::svg_of(figure), Not(HasSubstr("nan")));
}

TEST(SvgFigure, HasRoundTicks) {
  EXPECT_THAT(
      detail::ticks_between(0, 1, 6),
      ElementsAre(0, 0.2, 0.4, ::testing::DoubleEq(0.6), 0.8, 1));
  EXPECT_THAT(
      detail::ticks_between(-7, 22, 6), ElementsAre(-5, 0, 5, 10, 15, 20));
  EXPECT_THAT(detail::ticks_between(1, 1, 6), IsEmpty());
}

TEST(Histogram, CountsFiniteValues) {
  const std::vector<double> values{0, 1, 1, 4, kNan, INFINITY};
  const TrackedHistogram histogram = detail::histogram_of(values, 4);
  EXPECT_THAT(histogram.edges, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(histogram.counts, ElementsAre(1, 2, 0, 1));
  EXPECT_EQ(histogram.num, 4);
  EXPECT_EQ(histogram.min, 0);
  EXPECT_EQ(histogram.max, 4);
  EXPECT_EQ(histogram.sum, 6);
  EXPECT_EQ(histogram.sum_squares, 18);
}

TEST(Histogram, PutsEqualValuesIntoOneBin) {
  const std::vector<double> values{3, 3};
  const TrackedHistogram histogram = detail::histogram_of(values, 2);
  EXPECT_THAT(histogram.edges, ElementsAre(2.5, 3, 3.5));
  EXPECT_THAT(histogram.counts, ElementsAre(0, 2));
}

TEST(Histogram, TakesTheWholeRangeOfRealNumbers) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const std::vector<double> values{-kMost, 0, kMost};
  const TrackedHistogram histogram = detail::histogram_of(values, 2);
  EXPECT_THAT(histogram.counts, ElementsAre(1, 2));
  EXPECT_THAT(detail::histogram_of({}, 1).counts, ElementsAre(0));
}

}  // namespace svg_figure_test
}  // namespace
}  // namespace accelerate
