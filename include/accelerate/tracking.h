#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/tracker.h>

// Arguments of Accelerator::log() and related functions: tracker.h's values,
// and tensors.

namespace accelerate {

/// A value and its name. A tensor with one element becomes a number, one with
/// several a list (of lists, by its dimensions). It is read at once, which
/// waits for the device to compute it, so log tensors on a device every few
/// steps, not in each. Throws ConfigError for an undefined or complex tensor.
class ACCELERATE_API LogEntry {
 public:
  LogEntry(std::string name, TrackedValue value);
  LogEntry(std::string name, const at::Tensor& value);

  /// The name and the value.
  [[nodiscard]] const NamedValue& entry() const { return entry_; }

 private:
  NamedValue entry_;
};

/// Values that are logged together: {{"loss", loss}, {"lr", 1e-3}}.
class ACCELERATE_API LogValues {
 public:
  LogValues();
  LogValues(std::initializer_list<LogEntry> entries);
  LogValues(TrackedValues values);

  /// The values in the order given.
  [[nodiscard]] const TrackedValues& values() const { return values_; }
  /// The same, moved out.
  [[nodiscard]] TrackedValues take() &&;

 private:
  TrackedValues values_;
};

/// Converts a tensor as LogEntry does.
ACCELERATE_API TrackedValue to_tracked_value(const at::Tensor& tensor);

/// How images are laid out, and options of trackers.
struct LogImagesOptions {
  /// The order of dimensions: "NHWC", "NCHW", "HWC", "CHW" or "HW". Empty:
  /// channels come first if that dimension has 1, 3 or 4 elements, else last.
  std::string layout = {};
  /// Settings by tracker name.
  TrackerKwargs log_kwargs = {};
};

/// Converts images to the form that trackers take: floats from 0 to 1, or
/// bytes; booleans become black and white. Throws ConfigError for other dtypes,
/// and for shapes that are not images.
ACCELERATE_API TrackedImages
to_tracked_images(const at::Tensor& images, const std::string& layout = {});

/// Counts a tensor's elements in bins of equal width, from the smallest to the
/// largest element. Infinities and NaN are left out. Throws ConfigError for an
/// undefined or complex tensor, and without bins.
ACCELERATE_API TrackedHistogram
to_tracked_histogram(const at::Tensor& values, std::int64_t num_bins = 64);

/// One line, cloud of points, or row of bars in a figure.
struct FigureSeries {
  /// How a series is drawn: as a line, as points (`scatter`) or as bars
  /// (`bar`).
  enum class Kind { line, scatter, bar };
  /// How it is drawn.
  Kind kind = Kind::line;
  /// Shown in the legend.
  std::string name = {};
  /// One value for each of `y`; undefined: 0, 1, 2, ...
  at::Tensor x = {};
  /// Heights, 1-d.
  at::Tensor y = {};
};

/// A drawing of lines, points and bars on the same axes.
struct Figure {
  /// Written above; may be empty.
  std::string title = {};
  /// Written below the axis.
  std::string x_label = {};
  /// Written beside the axis.
  std::string y_label = {};
  /// What is drawn, each in a colour of its own.
  std::vector<FigureSeries> series = {};
  int width = 640;   ///< in pixels
  int height = 400;  ///< in pixels
};

/// Renders the figure as an SVG document. Throws ConfigError for series whose x
/// and y differ in length. Points that are not finite become gaps.
ACCELERATE_API std::string to_svg(const Figure& figure);

}  // namespace accelerate
