#include "cli/watch/terminal/curve_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/text/text.h"
#include "cli/runs/figures.h"

namespace accelerate::cli {

namespace {

using detail::format;

constexpr std::size_t kLabelColumns = 11;
constexpr const char* kMark = "\xe2\x96\xb2";  // a triangle

struct Range {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  void add(double value) {
    min = std::min(min, value);
    max = std::max(max, value);
  }
  [[nodiscard]] bool is_empty() const { return min > max; }
  // Never of width 0, so that values have positions.
  [[nodiscard]] Range widened() const {
    if (is_empty()) return {0, 1};
    const double margin = min < max ? 0 : (min == 0 ? 1 : std::abs(min) * 0.05);
    return {min - margin, max + margin};
  }
  // The position of a value, from 0 to 1.
  [[nodiscard]] double place(double value) const {
    return (value - min) / (max - min);
  }
};

std::string to_right(const std::string& text, std::size_t width) {
  return std::string(
             width - std::min(width, detail::num_columns_of(text)), ' ') +
      text;
}

class Plot {
 public:
  Plot(const std::vector<PlottedCurve>& curves, const PlotLook& look)
      : curves_(curves),
        look_(look),
        num_columns_(look.num_columns - kLabelColumns - 1),
        canvas_(num_columns_, look.num_rows - 1) {
    Range heights;
    for (const PlottedCurve& curve : curves) {
      for (const auto& point : curve.points) {
        steps_.add(static_cast<double>(point.step));
        if (const double height = height_of(point.value); std::isfinite(height))
          heights.add(height);
      }
    }
    y_ = heights.widened();
    x_ = steps_.widened();
  }

  std::vector<std::string> lines() {
    for (const PlottedCurve& curve : curves_) draw(curve);
    std::vector<std::string> lines;
    for (std::size_t i = 0; i + 1 < look_.num_rows; ++i) {
      lines.push_back(
          to_right(label(i), kLabelColumns - 1) + " \xe2\x94\x82" +
          canvas_.row(i, look_.has_colors));
    }
    lines.push_back(steps_.is_empty() ? "" : axis());
    return lines;
  }

 private:
  [[nodiscard]] double height_of(double value) const {
    return look_.is_log ? std::log10(value) : value;
  }

  // The column in dots.
  [[nodiscard]] std::int64_t column_of(std::int64_t step) const {
    return std::llround(
        x_.place(static_cast<double>(step)) *
        static_cast<double>(canvas_.width() - 1));
  }

  void draw(const PlottedCurve& curve) {
    std::int64_t last_column = -1, last_row = 0;  // none yet
    for (const auto& point : curve.points) {
      const double height = height_of(point.value);
      if (!std::isfinite(height)) {
        last_column = -1;
        continue;
      }
      const std::int64_t column = column_of(point.step);
      const auto row = std::llround(
          (1 - y_.place(height)) * static_cast<double>(canvas_.height() - 1));
      if (last_column < 0)
        canvas_.dot(column, row, curve.color);
      else
        canvas_.line(last_column, last_row, column, row, curve.color);
      last_column = column;
      last_row = row;
    }
  }

  // Three values are labelled: at the top, in the middle and at the bottom.
  [[nodiscard]] std::string label(std::size_t row) const {
    const std::size_t last = look_.num_rows - 2;
    const bool has_any =
        row == 0 || row == last || (row == last / 2 && last > 3);
    if (!has_any || curves_.empty()) return "";
    const double place = last == 0
        ? 1
        : 1 - static_cast<double>(row) / static_cast<double>(last);
    const double value = y_.min + place * (y_.max - y_.min);
    return short_number(look_.is_log ? std::pow(10, value) : value);
  }

  [[nodiscard]] std::string axis() const {
    std::vector<std::string> cells(num_columns_, " ");
    for (const PlottedCurve& curve : curves_) {
      for (const std::int64_t step : curve.marks) {
        const auto place = static_cast<double>(step);
        if (place < steps_.min || place > steps_.max) continue;
        cells[static_cast<std::size_t>(column_of(step) / 2)] = look_.has_colors
            ? format("\x1b[38;5;{}m{}\x1b[39m", curve.color, kMark)
            : kMark;
      }
    }
    const auto write = [&](const std::string& text, std::size_t at) {
      for (std::size_t i = 0; i < text.size() && at + i < cells.size(); ++i)
        cells[at + i] = text.substr(i, 1);
    };
    const std::string right = format("{}", static_cast<long long>(steps_.max));
    write(right, num_columns_ - std::min(num_columns_, right.size()));
    write(format("{}", static_cast<long long>(steps_.min)), 0);
    return std::string(kLabelColumns + 1, ' ') + detail::join(cells, "");
  }

  const std::vector<PlottedCurve>& curves_;
  const PlotLook& look_;
  std::size_t num_columns_;
  BrailleCanvas canvas_;
  Range steps_;  // as they are
  Range x_, y_;  // that are drawn
};

}  // namespace

std::vector<std::string> plot_curves(
    const std::vector<PlottedCurve>& curves,
    const PlotLook& look) {
  return Plot(curves, look).lines();
}

BrailleCanvas::BrailleCanvas(std::size_t num_columns, std::size_t num_rows)
    : num_columns_(num_columns),
      num_rows_(num_rows),
      cells_(num_columns * num_rows) {}

void BrailleCanvas::dot(std::int64_t x, std::int64_t y, int color) {
  if (x < 0 || y < 0 || x >= width() || y >= height()) return;
  // The bits of U+2800's dots, by row and column.
  constexpr unsigned char kBits[4][2] = {
      {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  const auto row = static_cast<std::size_t>(y);
  const auto column = static_cast<std::size_t>(x);
  Cell& cell = cells_[row / 4 * num_columns_ + column / 2];
  cell.dots |= kBits[row % 4][column % 2];
  cell.color = color;
}

// Bresenham's algorithm.
void BrailleCanvas::line(
    std::int64_t x0,
    std::int64_t y0,
    std::int64_t x1,
    std::int64_t y1,
    int color) {
  const std::int64_t dx = std::abs(x1 - x0), dy = -std::abs(y1 - y0);
  const std::int64_t step_x = x0 < x1 ? 1 : -1, step_y = y0 < y1 ? 1 : -1;
  std::int64_t error = dx + dy;
  while (true) {
    dot(x0, y0, color);
    if (x0 == x1 && y0 == y1) return;
    const std::int64_t twice = 2 * error;
    if (twice >= dy) {
      error += dy;
      x0 += step_x;
    }
    if (twice <= dx) {
      error += dx;
      y0 += step_y;
    }
  }
}

std::string BrailleCanvas::row(std::size_t index, bool has_colors) const {
  std::string text;
  int color = 0;
  for (std::size_t i = 0; i < num_columns_; ++i) {
    const Cell& cell = cells_[index * num_columns_ + i];
    if (cell.dots == 0) {
      text += ' ';
      continue;
    }
    if (has_colors && cell.color != color) {
      color = cell.color;
      text +=
          color == 0 ? "\x1b[39m" : "\x1b[38;5;" + std::to_string(color) + "m";
    }
    // U+2800 and the dots, in UTF-8.
    text += '\xe2';
    text += static_cast<char>(0xa0 | cell.dots >> 6);
    text += static_cast<char>(0x80 | (cell.dots & 0x3f));
  }
  if (color != 0) text += "\x1b[39m";
  return text;
}

}  // namespace accelerate::cli
