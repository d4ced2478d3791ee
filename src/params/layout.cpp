#include "params/layout.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace accelerate::detail {

namespace {

// Whether ranks that differ along `axis` hold different boxes. Pipeline stages
// always do, since they hold different parameters.
bool has_other_boxes(const Layout& layout, Axis axis) {
  return axis == Axis::pipeline ||
      std::find(layout.split_axes.begin(), layout.split_axes.end(), axis) !=
      layout.split_axes.end();
}

}  // namespace

Layout Layout::unsharded(std::vector<std::int64_t> shape) {
  Layout layout;
  layout.offset.assign(shape.size(), 0);
  layout.extent = shape;
  layout.global_shape = std::move(shape);
  return layout;
}

void Layout::split(
    Axis axis,
    std::int64_t dim,
    std::int64_t begin,
    std::int64_t count) {
  const auto place = static_cast<std::size_t>(dim);
  offset[place] += begin;
  extent[place] = count;
  split_axes.push_back(axis);
}

bool is_writer(
    const Layout& layout,
    const std::array<int, kNumAxes>& coordinates) {
  for (int i = 0; i < kNumAxes; ++i) {
    if (!has_other_boxes(layout, static_cast<Axis>(i)) &&
        coordinates[static_cast<std::size_t>(i)] != 0)
      return false;
  }
  return true;
}

bool is_writer(const Layout& layout, const Mesh& mesh) {
  std::array<int, kNumAxes> coordinates{};
  for (int i = 0; i < kNumAxes; ++i) {
    coordinates[static_cast<std::size_t>(i)] =
        mesh.coordinate(static_cast<Axis>(i));
  }
  return is_writer(layout, coordinates);
}

Group replica_group(const Layout& layout, const Mesh& mesh) {
  std::vector<Axis> axes;
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!has_other_boxes(layout, axis)) axes.push_back(axis);
  }
  return mesh.group(axes);
}

}  // namespace accelerate::detail
