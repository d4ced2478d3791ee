#include "cli/watch/terminal/dashboard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/text/text.h"
#include "cli/runs/figures.h"
#include "cli/runs/text_table.h"
#include "cli/watch/curve.h"
#include "cli/watch/terminal/curve_plot.h"

namespace accelerate::cli {

namespace {

using detail::format;

constexpr std::array<double, 4> kSmoothing{0, 0.6, 0.9, 0.97};
constexpr int kMostZoom = 20;
// Codes among the terminal's 256 colors that are readable on dark and light
// backgrounds.
constexpr std::array<int, 8> kColors{33, 208, 35, 167, 134, 136, 175, 37};
constexpr int kWarningColor = 167;

// The text cut to at most that many terminal columns.
std::string cut(const std::string& text, std::size_t num_columns) {
  std::size_t shown = 0, i = 0;
  bool is_escape = false;
  for (; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (is_escape) {
      is_escape = text[i] != 'm';
    } else if (byte == 0x1b) {
      is_escape = true;
    } else if ((byte & 0xc0U) != 0x80U && ++shown > num_columns) {
      break;
    }
  }
  return text.substr(0, i);
}

int color_of(std::size_t run) { return kColors[run % kColors.size()]; }

}  // namespace

struct Dashboard::Curve {
  std::size_t run;
  std::vector<RunRecord::Point> points;
  double last;  // as it was logged
};

WatchKey take_key(std::string& input, bool is_all) {
  if (input.empty()) return WatchKey::none;
  std::size_t length = 1;
  WatchKey key = WatchKey::none;
  if (input[0] == '\x1b' && input.size() >= 2 &&
      (input[1] == '[' || input[1] == 'O')) {
    // Reads up to the final letter: arrows are C and D, shift-tab is Z.
    std::size_t end = 2;
    while (end < input.size() && (input[end] < '@' || input[end] > '~')) ++end;
    if (end == input.size() && !is_all) return WatchKey::none;
    length = std::min(end + 1, input.size());
    const char letter = end < input.size() ? input[end] : 0;
    if (letter == 'C') key = WatchKey::next_figure;
    if (letter == 'D' || letter == 'Z') key = WatchKey::previous_figure;
  } else if (input[0] == '\x1b') {
    if (input.size() == 1 && !is_all) return WatchKey::none;
  } else {
    switch (input[0]) {
      case '\t':
        key = WatchKey::next_figure;
        break;
      case '+':
      case '=':
        key = WatchKey::zoom_in;
        break;
      case '-':
        key = WatchKey::zoom_out;
        break;
      case 's':
        key = WatchKey::smooth;
        break;
      case 'l':
        key = WatchKey::log_axis;
        break;
      case 'q':
      case '\x03':  // Ctrl-C
        key = WatchKey::quit;
        break;
      default:
        break;
    }
  }
  input.erase(0, length);
  return key;
}

void Dashboard::press(WatchKey key) {
  const std::vector<std::string> names = runs_.figure_names();
  const auto move = [&](std::size_t by) {
    if (names.empty()) return;
    const auto found = std::ranges::find(names, figure());
    const auto index = static_cast<std::size_t>(found - names.begin());
    chosen_ = names[(index + by) % names.size()];
  };
  switch (key) {
    case WatchKey::next_figure:
      move(1);
      break;
    case WatchKey::previous_figure:
      move(names.empty() ? 0 : names.size() - 1);
      break;
    case WatchKey::zoom_in:
      zoom_ = std::min(zoom_ + 1, kMostZoom);
      break;
    case WatchKey::zoom_out:
      zoom_ = std::max(zoom_ - 1, 0);
      break;
    case WatchKey::smooth:
      smoothing_ = (smoothing_ + 1) % kSmoothing.size();
      break;
    case WatchKey::log_axis:
      is_log_ = !is_log_;
      break;
    case WatchKey::quit:
    case WatchKey::none:
      break;
  }
}

// The chosen figure, otherwise the main one of the first run that has any.
std::string Dashboard::figure() const {
  for (const auto& run : runs_.runs()) {
    const auto found = run->series().find(chosen_);
    if (found != run->series().end() && !found->second.empty()) return chosen_;
  }
  for (const auto& run : runs_.runs()) {
    std::string name = main_figure_of(*run);
    if (!name.empty()) return name;
  }
  return "";
}

std::vector<Dashboard::Curve> Dashboard::curves(
    const std::string& figure,
    std::size_t num_columns) const {
  CurveRequest request;
  request.num_columns = num_columns;
  request.smoothing = kSmoothing[smoothing_];
  std::optional<std::int64_t> first, last;
  const auto& runs = runs_.runs();
  for (const auto& run : runs) {
    const auto found = run->series().find(figure);
    if (found == run->series().end() || found->second.empty()) continue;
    const auto& points = found->second;
    first = std::min(first.value_or(points.front().step), points.front().step);
    last = std::max(last.value_or(points.back().step), points.back().step);
  }
  if (!first) return {};
  if (zoom_ > 0) request.from = *last - ((*last - *first) >> zoom_);
  std::vector<Curve> curves;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto found = runs[i]->series().find(figure);
    if (found == runs[i]->series().end() || found->second.empty()) continue;
    curves.push_back(
        {i, curve_of(found->second, request), found->second.back().value});
  }
  return curves;
}

std::vector<std::string> Dashboard::plot(
    const std::vector<Curve>& curves,
    std::size_t num_columns,
    std::size_t num_rows,
    bool has_colors) const {
  std::vector<PlottedCurve> plotted;
  for (const Curve& curve : curves) {
    plotted.push_back({color_of(curve.run), curve.points, {}});
    for (const RunRecord::Event* each : runs_.runs()[curve.run]->checkpoints())
      plotted.back().marks.push_back(*each->step);
  }
  return plot_curves(
      plotted,
      {.num_columns = num_columns,
       .num_rows = num_rows,
       .is_log = is_log_,
       .has_colors = has_colors});
}

std::string Dashboard::title(double now) const {
  const std::string name = figure();
  std::vector<std::string> notes;
  if (kSmoothing[smoothing_] > 0)
    notes.push_back(format("smoothing {}", kSmoothing[smoothing_]));
  if (is_log_) notes.emplace_back("log axis");
  if (zoom_ > 0) notes.push_back(format("last 1/{} of the steps", 1 << zoom_));
  double end = 0;
  for (const auto& run : runs_.runs()) end = std::max(end, run->end());
  notes.push_back(
      end == 0
          ? "nothing logged yet"
          : format(
                "last entry {} ago", duration_text(std::max(0.0, now - end))));
  return format(
      "{}  ({})",
      name.empty() ? "no figures yet" : detail::printable(name),
      detail::join(notes, ", "));
}

std::vector<std::string> Dashboard::legend(
    const std::vector<Curve>& curves,
    bool has_colors,
    std::size_t most) const {
  std::vector<std::string> lines;
  for (const Curve& curve : curves) {
    if (lines.size() == most) break;
    if (lines.size() + 1 == most && curves.size() > most) {
      lines.push_back(format("  and {} more runs", curves.size() - most + 1));
      break;
    }
    const RunRecord& run = *runs_.runs()[curve.run];
    const std::string dash = has_colors
        ? format(
              "\x1b[38;5;{}m\xe2\x94\x81\xe2\x94\x81\x1b[39m",
              color_of(curve.run))
        : "\xe2\x94\x81\xe2\x94\x81";
    const auto checkpoints = run.checkpoints();
    lines.push_back(format(
        "{} {}  step {}  {}{}",
        dash,
        detail::printable(run.name()),
        run.last_step().value_or(0),
        short_number(curve.last),
        checkpoints.empty()
            ? ""
            : format("  saved at {}", *checkpoints.back()->step)));
  }
  return lines;
}

// The ranks of the run that last reported them.
std::vector<std::string> Dashboard::rank_lines(std::size_t most) const {
  const RunRecord* newest = nullptr;
  for (const auto& run : runs_.runs()) {
    if (run->ranks().empty() || run->ranks().back().ranks.empty()) continue;
    if (newest == nullptr ||
        run->ranks().back().time > newest->ranks().back().time)
      newest = run.get();
  }
  if (newest == nullptr || most < 2) return {};
  std::vector<detail::JournalRank> ranks = newest->ranks().back().ranks;
  const auto [slowest, fastest] = std::ranges::minmax_element(
      ranks, {}, &detail::JournalRank::steps_per_second);
  std::optional<std::int64_t> slowest_rank;
  if (slowest->steps_per_second < fastest->steps_per_second)
    slowest_rank = slowest->rank;
  std::int64_t front = ranks.front().step;
  for (const auto& each : ranks) front = std::max(front, each.step);
  // If not all fit, shows the slowest ones.
  if (ranks.size() + 1 > most) {
    std::ranges::sort(ranks, {}, &detail::JournalRank::steps_per_second);
    ranks.resize(most - 1);
  }
  std::ranges::sort(ranks, {}, &detail::JournalRank::rank);
  TextTable table({"rank", "step", "behind", "steps/s", "memory MB", ""});
  for (const auto& each : ranks) {
    table.add(
        {format("{}", each.rank),
         format("{}", each.step),
         format("{}", front - each.step),
         short_number(each.steps_per_second),
         format("{}", std::llround(each.memory_mb)),
         slowest_rank == each.rank ? "slowest" : ""});
  }
  std::vector<std::string> lines = detail::split(table.text(), '\n');
  lines.pop_back();
  return lines;
}

// The most recent warning, and how many there are.
std::vector<std::string> Dashboard::warning_lines(Look look, std::size_t most)
    const {
  const RunRecord::Event* last = nullptr;
  std::size_t num = 0;
  for (const auto& run : runs_.runs()) {
    for (const RunRecord::Event& each : run->events()) {
      if (each.event.kind != detail::journal_kind::kWarning) continue;
      ++num;
      if (last == nullptr || each.time >= last->time) last = &each;
    }
  }
  if (last == nullptr || most == 0) return {};
  const std::string text = format(
      "{} {} ago: {}",
      num == 1 ? "warning" : format("{} warnings, the last one", num),
      duration_text(std::max(0.0, look.now - last->time)),
      detail::printable(last->event.body));
  return {
      look.has_colors ? format("\x1b[38;5;{}m{}\x1b[39m", kWarningColor, text)
                      : text};
}

std::vector<std::string> Dashboard::draw(ScreenSize size, Look look) const {
  constexpr std::size_t kLeastColumns = 24, kLeastRows = 6;
  constexpr std::size_t kLeastPlotRows = 4;
  std::vector<std::string> lines;
  if (size.num_columns < kLeastColumns || size.num_rows < kLeastRows) {
    lines.emplace_back("too small a window");
    lines.resize(size.num_rows);
    for (std::string& line : lines) line = cut(line, size.num_columns);
    return lines;
  }
  const auto shown = curves(figure(), 2 * size.num_columns);
  std::size_t num_free =
      size.num_rows - 1 - (look.has_keys ? 1 : 0) - kLeastPlotRows;
  const auto names = legend(
      shown,
      look.has_colors,
      std::min<std::size_t>(
          num_free, std::max<std::size_t>(1, size.num_rows / 5)));
  num_free -= std::min(num_free, names.size());
  const auto warnings = warning_lines(look, num_free);
  num_free -= warnings.size();
  const auto ranks = rank_lines(
      std::min(num_free, std::max<std::size_t>(2, size.num_rows / 3)));
  num_free -= std::min(num_free, ranks.size());
  lines.push_back(title(look.now));
  const auto plotted =
      plot(shown, size.num_columns, kLeastPlotRows + num_free, look.has_colors);
  for (const auto& part : {plotted, names, ranks, warnings})
    lines.insert(lines.end(), part.begin(), part.end());
  if (look.has_keys)
    lines.emplace_back(
        "\xe2\x86\x90 \xe2\x86\x92 figure  + - zoom  s smooth  l log  q quit");
  for (std::string& line : lines) line = cut(line, size.num_columns);
  return lines;
}

}  // namespace accelerate::cli
