#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

struct SvgSeries {
  enum class Kind { line, scatter, bar };
  Kind kind = Kind::line;
  std::string name = {};
  /// One per value of `y`.
  std::vector<double> x = {};
  std::vector<double> y = {};
};

struct SvgFigure {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<SvgSeries> series = {};
  int width = 640;
  int height = 400;
};

/// The figure as an SVG document with axes, a grid and a legend. Points that
/// are not finite become gaps.
std::string svg_of(const SvgFigure& figure);

/// About `most` round numbers that divide the range.
std::vector<double> ticks_between(double least, double largest, int most);

}  // namespace accelerate::detail
