#include <accelerate/progress.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/progress/progress_bar.h"

namespace accelerate {

namespace detail {

namespace {

// The weight of the newest interval in the rate, as tqdm smooths it.
constexpr double kSmoothing = 0.3;
// Number of clock readings per interval.
constexpr double kLooksPerInterval = 8;
constexpr std::int64_t kMostItemsUntilLook = 1 << 24;
constexpr int kUnknownColumns = 80;

double steady_seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int columns_of_terminal() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return kUnknownColumns;
  return size.ws_col;
}

}  // namespace

ProgressBar::ProgressBar(
    const ProgressOptions& options,
    ProgressScreen& screen,
    Clock clock)
    : screen_(screen),
      clock_(std::move(clock)),
      meter_{
          .description = options.description,
          .count = options.initial,
          .total = options.total,
          .unit = options.unit,
          .unit_scale = options.unit_scale,
          .unit_divisor = options.unit_divisor},
      initial_(options.initial),
      columns_(options.columns),
      ascii_(options.ascii.value_or(false)),
      leave_(options.leave),
      delay_seconds_(options.delay_seconds),
      interval_seconds_(
          screen.is_terminal() ? options.min_interval_seconds
                               : options.line_interval_seconds),
      number_(screen.add()) {
  begin_again();
}

ProgressBar::~ProgressBar() {
  if (!is_closed_) screen_.remove(number_, {});
}

void ProgressBar::begin_again() {
  begin_ = drawn_at_ = looked_at_ = clock_();
  drawn_count_ = looked_count_ = initial_;
  meter_.count = initial_;
  meter_.rate = std::nullopt;
  meter_.elapsed_seconds = 0;
  if (screen_.is_terminal() && !is_delayed(begin_))
    screen_.draw(number_, line(false));
}

bool ProgressBar::is_delayed(double now) const {
  return now - begin_ < delay_seconds_;
}

int ProgressBar::columns() const {
  if (columns_) return *columns_;
  // The last column stays free: some terminals start a new line there.
  return screen_.is_terminal() ? columns_of_terminal() - 1 : 0;
}

std::string ProgressBar::line(bool is_last) const {
  Meter meter = meter_;
  // At the end, shows the average rate of everything.
  if (is_last && meter.elapsed_seconds > 0 && meter.count > initial_) {
    meter.rate =
        static_cast<double>(meter.count - initial_) / meter.elapsed_seconds;
  }
  return meter_line(
      meter,
      {.has_bar = screen_.is_terminal(),
       .ascii = ascii_,
       .columns = columns()});
}

void ProgressBar::measure(std::int64_t count, double now) {
  const double seconds = now - drawn_at_;
  if (count > drawn_count_ && seconds > 0) {
    const double rate = static_cast<double>(count - drawn_count_) / seconds;
    meter_.rate = meter_.rate
        ? kSmoothing * rate + (1 - kSmoothing) * *meter_.rate
        : rate;
    drawn_at_ = now;
    drawn_count_ = count;
  }
  meter_.count = count;
  meter_.elapsed_seconds = now - begin_;
}

void ProgressBar::draw(std::int64_t count) {
  measure(count, clock_());
  if (screen_.is_terminal()) {
    screen_.draw(number_, line(false));
  } else {
    screen_.write_line(line(false));
  }
}

std::int64_t ProgressBar::look(std::int64_t count) {
  const double now = clock_();
  if (now - drawn_at_ >= interval_seconds_ && !is_delayed(now)) {
    draw(count);
    drawn_at_ = now;
    drawn_count_ = count;
  }
  const double seconds = now - looked_at_;
  const auto items = static_cast<double>(count - looked_count_);
  looked_at_ = now;
  looked_count_ = count;
  if (seconds <= 0) return 1;
  const double stride = items / seconds * interval_seconds_ / kLooksPerInterval;
  // The stride at most doubles, since the first items may be fast.
  return static_cast<std::int64_t>(std::clamp(
      std::min(stride, 2 * items),
      1.0,
      static_cast<double>(kMostItemsUntilLook)));
}

void ProgressBar::close(std::int64_t count) {
  if (is_closed_) return;
  is_closed_ = true;
  const double now = clock_();
  measure(count, now);
  const bool leaves_line = leave_ && !is_delayed(now);
  screen_.remove(number_, leaves_line ? line(true) : std::string());
}

ProgressOptions progress_options_of_rank(
    ProgressOptions options,
    bool is_local_main_process,
    bool has_utf8) {
  if (options.main_process_only && !is_local_main_process)
    options.disable = true;
  if (!options.ascii) options.ascii = !has_utf8;
  return options;
}

}  // namespace detail

std::string PostfixText::of_number(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", number);
  return text.data();
}

Progress::Progress(const ProgressOptions& options)
    : count_(options.initial),
      initial_(options.initial),
      is_disabled_(options.disable) {
  if (options.disable) return;
  bar_ = std::make_unique<detail::ProgressBar>(
      options,
      detail::ProgressScreen::of_standard_error(),
      detail::steady_seconds);
}

Progress::Progress(Progress&& other) noexcept = default;

Progress& Progress::operator=(Progress&& other) noexcept {
  if (this != &other) {
    close();
    bar_ = std::move(other.bar_);
    count_ = other.count_;
    initial_ = other.initial_;
    num_until_look_ = other.num_until_look_;
    is_disabled_ = other.is_disabled_;
  }
  return *this;
}

Progress::~Progress() { close(); }

void Progress::look() { num_until_look_ = bar_->look(count_); }

void Progress::set_postfix(std::vector<PostfixValue> values) {
  if (!bar_) return;
  std::string text;
  for (const PostfixValue& value : values) {
    if (!text.empty()) text += ", ";
    text += value.name + "=" + value.value.text();
  }
  bar_->set_postfix(std::move(text));
}

void Progress::set_description(std::string description) {
  if (bar_) bar_->set_description(std::move(description));
}

void Progress::set_total(std::optional<std::int64_t> total) {
  if (bar_) bar_->set_total(total);
}

void Progress::refresh() {
  if (bar_) bar_->draw(count_);
}

void Progress::reset() {
  count_ = initial_;
  num_until_look_ = 1;
  if (bar_) bar_->begin_again();
}

void Progress::close() {
  if (!bar_) return;
  bar_->close(count_);
  bar_ = {};
}

}  // namespace accelerate
