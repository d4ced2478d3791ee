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

}  // namespace accelerate::cli
