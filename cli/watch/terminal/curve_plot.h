#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// A curve as it is drawn, with places on the axis of steps that are marked.
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

/// `num_rows` lines: the curves, with the values at their left, and below them
/// the first and the last step, and the marks between these. Needs 24 columns
/// and 2 rows.
std::vector<std::string> plot_curves(
    const std::vector<PlottedCurve>& curves,
    const PlotLook& look);

}  // namespace accelerate::cli
