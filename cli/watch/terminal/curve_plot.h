#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// A curve to draw, with steps to mark on the axis.
struct PlottedCurve {
  int color = 0;  ///< of the terminal's 256
  std::vector<RunRecord::Point> points;
  std::vector<std::int64_t> marks;
};

struct PlotLook {
  std::size_t num_columns = 80;
  std::size_t num_rows = 20;
  bool is_log = false;  ///< the axis of values
  bool has_colors = false;
};

/// `num_rows` lines: the curves with values to their left, and below them the
/// first and the last step, with the marks in between. Needs 24 columns and 2
/// rows.
std::vector<std::string> plot_curves(
    const std::vector<PlottedCurve>& curves,
    const PlotLook& look);

/// A drawing of dots on a terminal: each character cell has two columns and
/// four rows of dots (Unicode's Braille patterns). Dots outside the canvas are
/// not drawn.
class BrailleCanvas {
 public:
  BrailleCanvas(std::size_t num_columns, std::size_t num_rows);

  /// Size in dots.
  [[nodiscard]] std::int64_t width() const {
    return static_cast<std::int64_t>(2 * num_columns_);
  }
  [[nodiscard]] std::int64_t height() const {
    return static_cast<std::int64_t>(4 * num_rows_);
  }

  /// The origin is at the top left. A cell has the color of its last dot.
  void dot(std::int64_t x, std::int64_t y, int color = 0);
  void line(
      std::int64_t x0,
      std::int64_t y0,
      std::int64_t x1,
      std::int64_t y1,
      int color = 0);

  /// A row of cells as UTF-8. With colors, nonzero colors are codes among the
  /// terminal's 256. Cells without dots are spaces.
  [[nodiscard]] std::string row(std::size_t index, bool has_colors) const;

 private:
  struct Cell {
    unsigned char dots = 0;
    int color = 0;
  };

  std::size_t num_columns_;
  std::size_t num_rows_;
  std::vector<Cell> cells_;
};

}  // namespace accelerate::cli
