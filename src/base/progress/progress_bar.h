#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <accelerate/progress.h>

#include "base/progress/meter.h"
#include "base/progress/screen.h"

namespace accelerate::detail {

/// Decides when a bar is drawn, and measures its rate.
class ProgressBar {
 public:
  /// Returns the seconds since some fixed moment.
  using Clock = std::function<double()>;

  ProgressBar(
      const ProgressOptions& options,
      ProgressScreen& screen,
      Clock clock);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  /// Draws if it is time to. Returns the number of items after which to call
  /// again, from the present rate: a fraction of the interval, so that a loop
  /// that slows down is noticed.
  std::int64_t look(std::int64_t count);
  void draw(std::int64_t count);
  void close(std::int64_t count);
  void begin_again();

  void set_postfix(std::string postfix) { meter_.postfix = std::move(postfix); }
  void set_description(std::string description) {
    meter_.description = std::move(description);
  }
  void set_total(std::optional<std::int64_t> total) { meter_.total = total; }

 private:
  void measure(std::int64_t count, double now);
  [[nodiscard]] std::string line(bool is_last) const;
  [[nodiscard]] int columns() const;
  [[nodiscard]] bool is_delayed(double now) const;

  ProgressScreen& screen_;
  Clock clock_;
  Meter meter_;
  std::int64_t initial_;
  std::optional<int> columns_;
  bool ascii_;
  bool leave_;
  double delay_seconds_;
  double interval_seconds_;
  std::uint64_t number_;
  bool is_closed_ = false;
  double begin_ = 0;
  /// When the bar was last drawn, or began, and the count at that time.
  double drawn_at_ = 0;
  std::int64_t drawn_count_ = 0;
  /// When look() was last called.
  double looked_at_ = 0;
  std::int64_t looked_count_ = 0;
};

/// The options on this rank: disabled where `main_process_only` says so.
ProgressOptions progress_options_of_rank(
    ProgressOptions options,
    bool is_local_main_process,
    bool has_utf8);

}  // namespace accelerate::detail
