#include "base/progress/screen.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace accelerate::detail {

namespace {

// A single write where the system accepts it, so that lines of several
// processes do not mix.
void write_to_standard_error(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

ProgressScreen::ProgressScreen(Write write, bool is_terminal)
    : write_(std::move(write)), is_terminal_(is_terminal) {}

ProgressScreen& ProgressScreen::of_standard_error() {
  // Never destroyed: messages may come from destructors of static objects.
  static auto* screen =
      new ProgressScreen(write_to_standard_error, ::isatty(STDERR_FILENO) == 1);
  return *screen;
}

std::string ProgressScreen::hide() {
  if (num_shown_ == 0) return {};
  std::string codes = "\r";
  for (std::size_t i = 1; i < num_shown_; ++i) codes += "\x1b[A";
  num_shown_ = 0;
  return codes + "\x1b[J";
}

std::string ProgressScreen::show() {
  std::string text;
  for (const Bar& bar : bars_) {
    if (bar.line.empty()) continue;
    if (num_shown_ > 0) text += "\n";
    text += "\r" + bar.line + "\x1b[K";
    ++num_shown_;
  }
  return text;
}

std::uint64_t ProgressScreen::add() {
  const std::lock_guard lock(mutex_);
  bars_.push_back({++next_number_});
  return next_number_;
}

void ProgressScreen::draw(std::uint64_t number, std::string line) {
  const std::lock_guard lock(mutex_);
  const auto bar = std::ranges::find(bars_, number, &Bar::number);
  if (bar == bars_.end()) return;
  const bool is_new = bar->line.empty();
  bar->line = std::move(line);
  if (!is_new && num_shown_ == 1) {
    // Overwritten in place, so that a single bar does not flicker.
    write_("\r" + bar->line + "\x1b[K");
    return;
  }
  std::string text = hide();
  text += show();
  write_(text);
}

void ProgressScreen::remove(std::uint64_t number, std::string_view left_line) {
  const std::lock_guard lock(mutex_);
  std::erase_if(bars_, [&](const Bar& bar) { return bar.number == number; });
  std::string text = hide();
  if (!left_line.empty()) text += std::string(left_line) + "\n";
  text += show();
  if (!text.empty()) write_(text);
}

void ProgressScreen::write_line(std::string_view line) {
  const std::lock_guard lock(mutex_);
  std::string text = hide();
  text += line;
  text += "\n";
  text += show();
  write_(text);
}

void ProgressScreen::print_above(const std::function<void()>& print) {
  const std::lock_guard lock(mutex_);
  const std::string before = hide();
  if (!before.empty()) write_(before);
  print();
  const std::string after = show();
  if (!after.empty()) write_(after);
}

void write_line_to_standard_output(std::string_view line) {
  std::string text(line);
  text += '\n';
  // Standard output is usually the same terminal as standard error, where
  // progress bars may be.
  ProgressScreen::of_standard_error().print_above([&] {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
}

}  // namespace accelerate::detail
