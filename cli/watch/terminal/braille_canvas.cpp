#include "cli/watch/terminal/braille_canvas.h"

#include <cstdlib>

namespace accelerate::cli {

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
