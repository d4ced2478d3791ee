#include "trackers/svg/svg_figure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kTop = 32;
constexpr double kBottom = 48;
constexpr double kLegendLine = 16;
constexpr int kMostTicks = 6;

// Okabe and Ito's colours, which colour-blind people can distinguish.
constexpr std::array<std::string_view, 7> kColours{
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000"};

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string place(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

// Characters that XML cannot represent are left out.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(letter) >= 0x20) result += letter;
    }
  }
  return is_utf8(result) ? result : printable(result);
}

struct Range {
  double least = 0;
  double largest = 1;
};

class RangeFinder {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    if (!range_) range_ = Range{value, value};
    range_->least = std::min(range_->least, value);
    range_->largest = std::max(range_->largest, value);
  }
  [[nodiscard]] Range range() const {
    if (!range_) return {};
    if (range_->least < range_->largest) return *range_;
    const double half = range_->least == 0 ? 1 : std::abs(range_->least) / 2;
    return {range_->least - half, range_->largest + half};
  }

 private:
  std::optional<Range> range_;
};

class Drawing {
 public:
  explicit Drawing(const SvgFigure& figure) : figure_(figure) {
    RangeFinder x;
    RangeFinder y;
    for (const SvgSeries& series : figure.series) {
      const double half = half_bar(series);
      for (const double value : series.x) {
        x.add(value - half);
        x.add(value + half);
      }
      for (const double value : series.y) y.add(value);
      if (series.kind == SvgSeries::Kind::bar) y.add(0);
    }
    x_ = x.range();
    y_ = y.range();
    const double margin = (y_.largest - y_.least) / 20;
    y_.largest += margin;
    if (y_.least != 0) y_.least -= margin;
  }

  std::string text() {
    out_ = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
        "viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        figure_.width,
        figure_.height,
        figure_.width,
        figure_.height);
    draw_axes();
    for (std::size_t i = 0; i < figure_.series.size(); ++i)
      draw(figure_.series[i], kColours.at(i % kColours.size()));
    draw_legend();
    return out_ + "</svg>\n";
  }

 private:
  [[nodiscard]] double width() const {
    return std::max(1.0, figure_.width - kLeft - kRight);
  }
  [[nodiscard]] double height() const {
    return std::max(1.0, figure_.height - kTop - kBottom);
  }
  [[nodiscard]] double at_x(double value) const {
    return kLeft + (value - x_.least) / (x_.largest - x_.least) * width();
  }
  [[nodiscard]] double at_y(double value) const {
    return kTop + (y_.largest - value) / (y_.largest - y_.least) * height();
  }
  // Half of a bar's width; a fifth of the distance between bars stays free.
  static double half_bar(const SvgSeries& series) {
    if (series.kind != SvgSeries::Kind::bar) return 0;
    std::vector<double> x = series.x;
    std::erase_if(x, [](double value) { return !std::isfinite(value); });
    std::ranges::sort(x);
    double least = 0;
    for (std::size_t i = 1; i < x.size(); ++i) {
      const double distance = x[i] - x[i - 1];
      if (distance > 0 && (least == 0 || distance < least)) least = distance;
    }
    return least == 0 ? 0.4 : 0.4 * least;
  }

  void write(
      double x,
      double y,
      std::string_view anchor,
      std::string_view text,
      std::string_view extra = "") {
    out_ += format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"{}\"{}>{}</text>\n",
        place(x),
        place(y),
        anchor,
        extra,
        escaped(text));
  }

  void
  line(double x1, double y1, double x2, double y2, std::string_view colour) {
    out_ += format(
        "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\"/>\n",
        place(x1),
        place(y1),
        place(x2),
        place(y2),
        colour);
  }

  void draw_axes() {
    const double bottom = kTop + height();
    const double right = kLeft + width();
    for (const double tick : ticks_between(x_.least, x_.largest, kMostTicks)) {
      line(at_x(tick), kTop, at_x(tick), bottom, "#dddddd");
      write(at_x(tick), bottom + 16, "middle", short_number(tick));
    }
    for (const double tick : ticks_between(y_.least, y_.largest, kMostTicks)) {
      line(kLeft, at_y(tick), right, at_y(tick), "#dddddd");
      write(kLeft - 6, at_y(tick) + 4, "end", short_number(tick));
    }
    line(kLeft, kTop, kLeft, bottom, "#444444");
    line(kLeft, bottom, right, bottom, "#444444");
    if (!figure_.title.empty()) {
      write(
          figure_.width / 2.0,
          kTop - 12,
          "middle",
          figure_.title,
          " font-weight=\"bold\"");
    }
    if (!figure_.x_label.empty())
      write(kLeft + width() / 2, bottom + 36, "middle", figure_.x_label);
    if (!figure_.y_label.empty()) {
      const double y = kTop + height() / 2;
      write(
          14,
          y,
          "middle",
          figure_.y_label,
          format(" transform=\"rotate(-90 14 {})\"", place(y)));
    }
  }

  void draw(const SvgSeries& series, std::string_view colour) {
    switch (series.kind) {
      case SvgSeries::Kind::line:
        return draw_line(series, colour);
      case SvgSeries::Kind::scatter:
        return draw_points(series, colour);
      case SvgSeries::Kind::bar:
        return draw_bars(series, colour);
    }
  }

  // One polyline for each stretch of finite points.
  void draw_line(const SvgSeries& series, std::string_view colour) {
    std::string points;
    const auto end_stretch = [&] {
      if (!points.empty()) {
        out_ += format(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" "
            "points=\"{}\"/>\n",
            colour,
            points);
      }
      points.clear();
    };
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) {
        end_stretch();
        continue;
      }
      if (!points.empty()) points += ' ';
      points += place(at_x(series.x[i])) + ',' + place(at_y(series.y[i]));
    }
    end_stretch();
  }

  void draw_points(const SvgSeries& series, std::string_view colour) {
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
      out_ += format(
          "<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{}\" "
          "fill-opacity=\"0.7\"/>\n",
          place(at_x(series.x[i])),
          place(at_y(series.y[i])),
          colour);
    }
  }

  void draw_bars(const SvgSeries& series, std::string_view colour) {
    const double half = half_bar(series);
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
      const double left = at_x(series.x[i] - half);
      const double top = at_y(std::max(0.0, series.y[i]));
      out_ += format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" "
          "fill-opacity=\"0.8\"/>\n",
          place(left),
          place(top),
          place(at_x(series.x[i] + half) - left),
          place(at_y(std::min(0.0, series.y[i])) - top),
          colour);
    }
  }

  void draw_legend() {
    double y = kTop + kLegendLine;
    for (std::size_t i = 0; i < figure_.series.size(); ++i) {
      if (figure_.series[i].name.empty()) continue;
      const double x = kLeft + width() - 8;
      out_ += format(
          "<rect x=\"{}\" y=\"{}\" width=\"10\" height=\"10\" "
          "fill=\"{}\"/>\n",
          place(x - 10),
          place(y - 9),
          kColours.at(i % kColours.size()));
      write(x - 16, y, "end", figure_.series[i].name);
      y += kLegendLine;
    }
  }

  const SvgFigure& figure_;
  Range x_;
  Range y_;
  std::string out_;
};

}  // namespace

std::vector<double> ticks_between(double least, double largest, int most) {
  const double rough = (largest - least) / most;
  if (!std::isfinite(rough) || rough <= 0) return {};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(least / step);
  // Multiples rather than sums, so that 0 is exactly 0.
  for (int i = 0; i <= 2 * most && (first + i) * step <= largest; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::string svg_of(const SvgFigure& figure) { return Drawing(figure).text(); }

}  // namespace accelerate::detail
