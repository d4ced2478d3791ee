#include <accelerate/tracking.h>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "trackers/media/histogram.h"
#include "trackers/svg/svg_figure.h"

namespace accelerate {

namespace {

using detail::format;

void require_real(const at::Tensor& tensor, const char* what) {
  if (tensor.defined() && !tensor.is_complex()) return;
  throw ConfigError(format(
      "[track] {} cannot be logged: the tensor is {}",
      what,
      tensor.defined() ? "complex" : "undefined"));
}

// Contiguous, of the dtype, in host memory.
at::Tensor host_copy(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.detach().to(at::kCPU, dtype).contiguous();
}

template <class T>
TrackedValue nested_list(const T*& values, at::IntArrayRef sizes) {
  if (sizes.empty()) return *values++;
  TrackedValue::List list;
  list.reserve(static_cast<std::size_t>(sizes.front()));
  for (std::int64_t i = 0; i < sizes.front(); ++i)
    list.push_back(nested_list(values, sizes.slice(1)));
  return list;
}

template <class T>
TrackedValue value_of(const at::Tensor& tensor, at::ScalarType dtype) {
  const at::Tensor host = host_copy(tensor, dtype);
  const T* values = host.const_data_ptr<T>();
  const bool is_number = host.numel() == 1;
  return nested_list(values, is_number ? at::IntArrayRef() : host.sizes());
}

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const at::Tensor host = host_copy(tensor, at::kDouble);
  const double* const values = host.const_data_ptr<double>();
  return {values, values + host.numel()};
}

bool may_be_channels(std::int64_t size) {
  return size == 1 || size == 3 || size == 4;
}

std::string layout_of(const at::Tensor& images) {
  const std::int64_t num_dims = images.dim();
  if (num_dims == 2) return "HW";
  if (num_dims != 3 && num_dims != 4) {
    throw ConfigError(format(
        "[track] images have 2 to 4 dimensions, the tensor has {}", num_dims));
  }
  const bool is_first = may_be_channels(images.size(num_dims - 3));
  const std::string layout = is_first ? "CHW" : "HWC";
  return num_dims == 4 ? "N" + layout : layout;
}

detail::SvgSeries svg_series(const FigureSeries& series) {
  require_real(series.y, "a figure");
  detail::SvgSeries result;
  result.kind = static_cast<detail::SvgSeries::Kind>(series.kind);
  result.name = series.name;
  result.y = numbers_of(series.y);
  if (series.x.defined()) {
    require_real(series.x, "a figure");
    result.x = numbers_of(series.x);
  } else {
    for (std::size_t i = 0; i < result.y.size(); ++i)
      result.x.push_back(static_cast<double>(i));
  }
  if (result.x.size() == result.y.size()) return result;
  throw ConfigError(format(
      "[track] the series \"{}\" of a figure has {} values of x and {} of y",
      detail::printable(series.name),
      result.x.size(),
      result.y.size()));
}

}  // namespace

LogEntry::LogEntry(std::string name, TrackedValue value)
    : entry_{std::move(name), std::move(value)} {}

LogEntry::LogEntry(std::string name, const at::Tensor& value)
    : entry_{std::move(name), {}} {
  require_real(value, format("\"{}\"", detail::printable(entry_.name)).c_str());
  entry_.value = to_tracked_value(value);
}

LogValues::LogValues() = default;

LogValues::LogValues(std::initializer_list<LogEntry> entries) {
  values_.reserve(entries.size());
  for (const LogEntry& each : entries) values_.push_back(each.entry());
}

LogValues::LogValues(TrackedValues values) : values_(std::move(values)) {}

TrackedValues LogValues::take() && { return std::move(values_); }

TrackedValue to_tracked_value(const at::Tensor& tensor) {
  require_real(tensor, "a value");
  if (tensor.scalar_type() == at::kBool)
    return value_of<bool>(tensor, at::kBool);
  if (tensor.is_floating_point()) return value_of<double>(tensor, at::kDouble);
  return value_of<std::int64_t>(tensor, at::kLong);
}

TrackedImages to_tracked_images(
    const at::Tensor& images,
    const std::string& layout) {
  require_real(images, "an image");
  TrackedImages result;
  result.layout = layout.empty() ? layout_of(images) : layout;
  if (result.layout.size() != static_cast<std::size_t>(images.dim())) {
    throw ConfigError(format(
        "[track] the layout of images is \"{}\", the tensor has {} dimensions",
        detail::printable(result.layout),
        images.dim()));
  }
  result.shape = images.sizes().vec();
  result.is_float = images.is_floating_point();
  at::Tensor host;
  if (result.is_float) {
    host = host_copy(images, at::kFloat);
  } else if (images.scalar_type() == at::kBool) {
    host = host_copy(images, at::kByte) * 255;
  } else if (images.scalar_type() == at::kByte) {
    host = host_copy(images, at::kByte);
  } else {
    throw ConfigError(
        "[track] images are floats of 0 to 1 or bytes "
        "(uint8); convert the tensor");
  }
  result.values.assign(
      static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  return result;
}

TrackedHistogram to_tracked_histogram(
    const at::Tensor& values,
    std::int64_t num_bins) {
  require_real(values, "a histogram");
  detail::require_at_least("track", "num_bins of a histogram", num_bins, 1);
  return detail::histogram_of(numbers_of(values), num_bins);
}

std::string to_svg(const Figure& figure) {
  detail::SvgFigure result{
      .title = figure.title,
      .x_label = figure.x_label,
      .y_label = figure.y_label,
      .series = {},
      .width = figure.width,
      .height = figure.height};
  for (const FigureSeries& each : figure.series)
    result.series.push_back(svg_series(each));
  return detail::svg_of(result);
}

}  // namespace accelerate
