#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

struct SvgSeries {
  enum class Kind { line, scatter, bar };
  Kind kind = Kind::line;
  std::string name = {};
  /// As many as `y`.
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
/// are not finite are gaps.
std::string svg_of(const SvgFigure& figure);

/// Round numbers that divide the range, about `most` of them.
std::vector<double> ticks_between(double least, double largest, int most);

}  // namespace accelerate::detail
