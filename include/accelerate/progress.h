#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

// Progress bars in the style of tqdm. Needs no LibTorch.

namespace accelerate {

/// How a progress bar looks and when it is drawn. Names are tqdm's.
struct ProgressOptions {
  // What is counted.

  /// Text before the bar.
  std::string description = {};
  /// Number of items; unset: the size of the range, if known. If it is not,
  /// there is a count and a rate, but no bar.
  std::optional<std::int64_t> total = std::nullopt;
  /// Items already done before, as in a resumed run; not part of the rate.
  std::int64_t initial = 0;
  /// Name of an item, as in rates ("it/s").
  std::string unit = "it";
  /// Write counts and rates as 1.23k, 4.56M.
  bool unit_scale = false;
  /// The step from one prefix to the next: 1000, or 1024 for bytes.
  double unit_divisor = 1000;

  // When it is shown.

  /// Keep the line when the bar ends. False: remove it.
  bool leave = true;
  /// Nothing is shown before this time has passed, or if the bar ends sooner:
  /// for loops that are usually short.
  double delay_seconds = 0;
  /// Minimum time between two redraws on a terminal.
  double min_interval_seconds = 0.1;
  /// Minimum time between two lines if standard error is not a terminal. Raise
  /// it to keep log files of long runs short.
  double line_interval_seconds = 10;

  // What it looks like, and where it is shown.

  /// Columns of the line; unset: the terminal's.
  std::optional<int> columns = std::nullopt;
  /// Draw with # and digits. Unset: bars of an Accelerator do so unless the
  /// locale is UTF-8; others do not.
  std::optional<bool> ascii = std::nullopt;
  /// Show nothing at all.
  bool disable = false;
  /// Show the bar on each node's first rank only; for Accelerator::progress().
  bool main_process_only = true;
};

/// A value shown after the bar. Numbers have three significant digits.
class ACCELERATE_API PostfixText {
 public:
  PostfixText(std::string text) : text_(std::move(text)) {}
  PostfixText(std::string_view text) : text_(text) {}
  PostfixText(const char* text) : text_(text) {}
  template <std::integral T>
  PostfixText(T number) : text_(std::to_string(number)) {}
  template <std::floating_point T>
  PostfixText(T number) : text_(of_number(static_cast<double>(number))) {}

  /// The text that is shown.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  static std::string of_number(double number);

  std::string text_;
};

/// A name and its value, shown after the bar.
struct PostfixValue {
  /// What stands before the equals sign.
  std::string name;
  /// What stands after it.
  PostfixText value;
};

namespace detail {
class ProgressBar;
}  // namespace detail

/// A progress bar on standard error. On a terminal, it is a line at the bottom
/// that is redrawn, with the bars of inner loops below it; elsewhere (pipes,
/// files, notebooks) a plain line every line_interval_seconds. Messages of
/// loggers appear above it. Not thread-safe.
class ACCELERATE_API Progress {
 public:
  explicit Progress(const ProgressOptions& options = {});
  Progress(Progress&& other) noexcept;
  Progress& operator=(Progress&& other) noexcept;
  ~Progress();

  /// Counts items. Usually costs a few nanoseconds.
  void update(std::int64_t num_items = 1) {
    count_ += num_items;
    if (bar_ && --num_until_look_ <= 0) look();
  }
  /// Sets the values after the bar, from the next redraw on.
  void set_postfix(std::vector<PostfixValue> values);
  /// Sets the text before the bar, from the next redraw on.
  void set_description(std::string description);
  /// Sets the number of items; unset: unknown, and only the count is shown.
  void set_total(std::optional<std::int64_t> total);
  /// Draws the bar now.
  void refresh();
  /// Restarts, with the same total.
  void reset();
  /// Draws the bar one last time, or removes it without `leave`. The destructor
  /// does the same.
  void close();

  /// Number of items so far.
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// True if it never shows anything.
  [[nodiscard]] bool is_disabled() const { return is_disabled_; }

 private:
  void look();

  detail::OwnedPtr<detail::ProgressBar> bar_;
  std::int64_t count_ = 0;
  std::int64_t initial_ = 0;
  std::int64_t num_until_look_ = 1;
  bool is_disabled_ = false;
};

namespace detail {

/// The numbers from 0, for Accelerator::progress(total).
class CountRange {
 public:
  class Iterator {
   public:
    explicit Iterator(std::int64_t number) : number_(number) {}
    std::int64_t operator*() const { return number_; }
    Iterator& operator++() {
      ++number_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    std::int64_t number_;
  };

  explicit CountRange(std::int64_t size) : size_(size) {}
  [[nodiscard]] Iterator begin() const { return Iterator(0); }
  [[nodiscard]] Iterator end() const { return Iterator(size_); }
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  std::int64_t size_;
};

template <class Range>
std::optional<std::int64_t> size_of_range(const Range& range) {
  if constexpr (requires {
                  { range.size() } -> std::convertible_to<std::int64_t>;
                }) {
    return static_cast<std::int64_t>(range.size());
  } else if constexpr (std::is_bounded_array_v<Range>) {
    return static_cast<std::int64_t>(std::extent_v<Range>);
  } else {
    return std::nullopt;
  }
}

}  // namespace detail

/// A range that is also a bar, which counts its elements as a loop reads them.
/// A temporary range is stored, any other is borrowed.
template <class Range>
class ProgressRange : public Progress {
  using Stored = std::remove_reference_t<Range>;

 public:
  ProgressRange(Range&& range, const ProgressOptions& options)
      : Progress(with_total(range, options)),
        range_(std::forward<Range>(range)) {}

  /// Counts an item each time it moves on.
  template <class Inner>
  class Iterator {
   public:
    Iterator(Inner inner, Progress& progress)
        : inner_(std::move(inner)), progress_(&progress) {}
    decltype(auto) operator*() { return *inner_; }
    Iterator& operator++() {
      // Count first: the time to make the next element belongs to the next
      // item.
      progress_->update();
      ++inner_;
      return *this;
    }
    template <class End>
    friend bool operator==(const Iterator& left, const End& right) {
      return left.inner_ == right;
    }

   private:
    Inner inner_;
    Progress* progress_;
  };

  /// Begins to count, with the range's own iterator inside.
  auto begin() {
    using std::begin;
    return Iterator<decltype(begin(range_))>(begin(range_), *this);
  }
  /// The end of the range.
  auto end() {
    using std::end;
    return end(range_);
  }

 private:
  static ProgressOptions with_total(
      const Stored& range,
      ProgressOptions options) {
    if (!options.total) options.total = detail::size_of_range(range);
    return options;
  }

  Range range_;
};

/// A bar around a range: `for (auto& file : progress(files))`. A program with
/// an Accelerator uses Accelerator::progress(), which knows the ranks.
template <class Range>
  requires(!std::is_arithmetic_v<std::remove_cvref_t<Range>>)
[[nodiscard]] auto progress(
    Range&& range,
    const ProgressOptions& options = {}) {
  return ProgressRange<Range>(std::forward<Range>(range), options);
}
/// A bar around the numbers below `total`, or one that the caller updates.
template <std::integral T>
  requires(!std::same_as<T, bool>)
[[nodiscard]] auto progress(T total, const ProgressOptions& options = {}) {
  return ProgressRange<detail::CountRange>(
      detail::CountRange(static_cast<std::int64_t>(total)), options);
}
/// Deleted: pass options in braces, `{.main_process_only = false}`.
void progress(bool, const ProgressOptions& = {}) = delete;

}  // namespace accelerate
